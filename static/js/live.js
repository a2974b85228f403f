// listen("/ws/jobs/7/", { snapshot(event) {...}, step(event) {...}, closed() {...} })
// The first message is a snapshot with a sequence number, a delta holds events in order; older ones are dropped; after a cut it reconnects
// with back-off and the server sends a new snapshot. The banner tells when what is shown may be old.
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 10_000;
const BANNER_AFTER_MS = 1500;
const FINAL_CODES = new Set([1000, 4401, 4403, 4404]);
const REASONS = {
  4401: "Your session has ended: sign in again to see live values.",
  4403: "You may not watch this page live.",
  4404: "What this page shows does not exist any more.",
};
const cut = new Map();

export function announce(text) {
  const region = document.querySelector("#announcements");
  if (region) region.textContent = text;
}

function showBanner() {
  const banner = document.querySelector("#connection-banner");
  if (!banner) return;
  const since = Math.min(...[...cut.values()].map((state) => state.since));
  const late = cut.size > 0 && Date.now() - since >= BANNER_AFTER_MS;
  banner.hidden = !late;
  document.body.classList.toggle("connection-lost", late);
  if (!late) return;
  const reason = [...cut.values()].find((state) => state.reason)?.reason;
  banner.querySelector("[data-text]").textContent =
    reason ?? `Connection lost ${Math.round((Date.now() - since) / 1000)} s ago. Trying again; the values below are stale.`;
}

setInterval(showBanner, 500);

export function listen(path, handlers) {
  const key = Symbol(path);
  let socket = null;
  let sequence = -1;
  let delay = FIRST_DELAY_MS;
  let timer = 0;
  let stopped = false;

  function receive(message) {
    const event = JSON.parse(message.data);
    (event.type === "delta" ? event.items : [event]).forEach(take);
  }

  function take(event) {
    if (event.type === "snapshot") sequence = event.seq ?? -1;
    else if (event.seq !== undefined && event.seq <= sequence) return;
    else if (event.seq !== undefined) sequence = event.seq;
    cut.delete(key);
    delay = FIRST_DELAY_MS;
    (handlers[event.type] ?? handlers.any)?.(event);
    handlers.received?.(event);
  }

  function closed(event) {
    if (stopped) return;
    if (event.code === 1000) { stopped = true; handlers.closed?.(event); return; }
    if (!cut.has(key)) cut.set(key, { since: Date.now() });
    if (FINAL_CODES.has(event.code)) { cut.get(key).reason = REASONS[event.code]; return; }
    timer = setTimeout(open, delay * (0.75 + Math.random() / 2));
    delay = Math.min(delay * 2, LONGEST_DELAY_MS);
  }

  function open() {
    clearTimeout(timer);
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(`${scheme}//${location.host}${path}`);
    socket.addEventListener("open", () => { cut.delete(key); handlers.opened?.(); });
    socket.addEventListener("message", receive);
    socket.addEventListener("close", closed);
  }

  function hurry() {
    if (!stopped && socket.readyState === WebSocket.CLOSED) open();
  }

  open();
  addEventListener("online", hurry);
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && hurry());
  return {
    send: (data) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(data)),
    stop() { stopped = true; clearTimeout(timer); cut.delete(key); socket.close(1000); },
  };
}

// Marks an element as stale when freshen() was not called for limitSeconds; a [data-stale-text] inside says for how long.
export function watchFreshness(element, limitSeconds = 5) {
  let last = Date.now();
  setInterval(() => {
    const seconds = Math.round((Date.now() - last) / 1000);
    const stale = seconds >= limitSeconds;
    element.classList.toggle("is-stale", stale);
    const text = element.querySelector("[data-stale-text]");
    if (text) text.textContent = stale ? `stale ${seconds} s` : "";
  }, 1000);
  return () => { last = Date.now(); };
}
