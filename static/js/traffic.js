// Traffic: on the shortest range every tick of a gateway moves the charts of the queue, the slots and the tokens;
// the charts of requests, and everything on longer ranges, are fetched again now and then.
import { draw } from "./chart.js";
import { listen, watchFreshness } from "./live.js";

const root = document.querySelector("#traffic");
const isLive = "live" in root.dataset;
const spanSeconds = Number(root.dataset.spanSeconds);
const chart = (name) => document.querySelector(`#chart-${name}`);
const tile = (name, text) => { document.querySelector(`#tile-${name} [data-value]`).textContent = text; };
const fresh = watchFreshness(document.querySelector(".tiles"), 5);
const GATEWAY_GONE_MS = 3000;
const gateways = new Map();

function figureOf(frame) {
  frame.figure ??= JSON.parse(frame.querySelector("script[type='application/json']").textContent);
  return frame.figure;
}

function isInSight(frame) {
  const box = frame.getBoundingClientRect();
  return box.bottom > -200 && box.top < innerHeight + 200 && document.visibilityState === "visible";
}

function push(frame, at, values) {
  const figure = figureOf(frame);
  const oldest = new Date(Date.parse(at) - spanSeconds * 1000).toISOString();
  for (const trace of figure.data) {
    if (!values.has(trace.name)) continue;
    trace.x.push(at);
    trace.y.push(values.get(trace.name));
    const first = trace.x.findIndex((time) => time >= oldest);
    if (first > 0) { trace.x.splice(0, first); trace.y.splice(0, first); }
  }
  figure.layout.xaxis.range = [oldest, at];
  if (isInSight(frame)) draw(frame, figure);
}

function sum(name) {
  return [...gateways.values()].reduce((total, tick) => total + tick[name], 0);
}

function show(tick) {
  const now = Date.now();
  gateways.set(tick.gateway, { ...tick, seen: now });
  for (const [name, known] of gateways) if (now - known.seen > GATEWAY_GONE_MS) gateways.delete(name);
  const slots = Math.max(...[...gateways.values()].map((known) => known.slots));
  fresh();
  tile("waiting", sum("waiting"));
  tile("running", `${sum("running")} / ${slots}`);
  tile("tokens", sum("output_tokens"));
  if (!isLive) return;
  const queues = tick.replicas.map((replica) => [replica.label, replica.waiting]);
  push(chart("queue"), tick.at, new Map([["All", sum("waiting")], ...queues]));
  push(chart("slots"), tick.at, new Map([["In use", sum("running")], ["All slots", slots]]));
  push(chart("tokens"), tick.at, new Map([["Tokens", sum("output_tokens")]]));
}

let due = 0;

async function refresh(names) {
  if (document.visibilityState !== "visible") return;
  const response = await fetch(`${root.dataset.charts}?range=${root.dataset.range}`);
  if (!response.ok) return;
  const { figures, tiles } = await response.json();
  for (const { tile_id: id, value, hint } of tiles) {
    if (isLive && ["tile-waiting", "tile-running", "tile-tokens"].includes(id)) continue;
    const element = document.getElementById(id);
    element.querySelector("[data-value]").textContent = value;
    element.querySelector(".hint").textContent = hint;
  }
  for (const [name, figure] of Object.entries(figures)) {
    const frame = chart(name);
    if (!names.includes(name)) continue;
    frame.figure = figure;
    if (isInSight(frame)) draw(frame, figure);
  }
}

const OF_REQUESTS = ["waits", "phases", "handovers"];
const ALL = [...OF_REQUESTS, "queue", "slots", "tokens"];
listen("/ws/traffic/", {
  snapshot: () => refresh(ALL),
  "traffic.tick": show,
  "request.ended": () => { due ||= setTimeout(() => { due = 0; refresh(isLive ? OF_REQUESTS : ALL); }, 2000); },
  any: () => {},
});
setInterval(() => refresh(isLive ? OF_REQUESTS : ALL), isLive ? 10_000 : 30_000);
document.addEventListener("visibilitychange", () => refresh(ALL));
