// Drives jobs/_panel.html: <section data-job data-socket="/ws/jobs/7/">. Every value is also rendered by the server.
// Other events of the job are re-sent as "e2llm:job-<type>" on the panel, so that a page can listen without a second socket.
import { announce, listen } from "./live.js";
import { duration } from "./time.js";

const LINES_KEPT = 500;
const SILENT_AFTER_SECONDS = 5;
const FINISHED = new Set(["succeeded", "failed", "cancelled", "interrupted"]);

function icon(template, name) {
  return template.content.querySelector(`[data-icon="${name}"]`)?.cloneNode(true) ?? "";
}

function showJob(panel, job) {
  const part = (name) => panel.querySelector(`[data-job-${name}]`);
  const before = panel.dataset.state;
  panel.dataset.state = job.state;
  part("state")?.replaceChildren(icon(panel.querySelector("template"), job.shown_state));
  if (part("message")) part("message").textContent = job.message ?? "";
  const bar = part("bar");
  const known = typeof job.fraction === "number";
  const percent = job.state === "succeeded" ? 100 : Math.round((job.fraction ?? 0) * 100);
  bar.hidden = FINISHED.has(job.state) && job.state !== "succeeded";
  bar.classList.toggle("progress-indeterminate", !known && !FINISHED.has(job.state));
  bar.querySelector(".progress-bar").style.width = `${percent}%`;
  if (known || FINISHED.has(job.state)) bar.setAttribute("aria-valuenow", percent);
  else bar.removeAttribute("aria-valuenow");
  if (part("percent")) part("percent").textContent = known ? `${percent} %` : "";
  if (part("remaining")) {
    part("remaining").textContent = !(job.remaining_seconds >= 1) || FINISHED.has(job.state) ? "" : `about ${duration(job.remaining_seconds)} left`;
  }
  if (part("error")) {
    part("error").hidden = !job.error;
    part("error").querySelector("[data-text]").textContent = job.error ?? "";
  }
  if (part("cancel")) {
    part("cancel").hidden = FINISHED.has(job.state);
    part("cancel").querySelector("button").disabled = job.shown_state === "cancelling";
  }
  if (before !== job.state && FINISHED.has(job.state)) finish(panel, job);
}

function finish(panel, job) {
  announce(`${panel.dataset.label ?? "Job"}: ${job.state}. ${job.error || job.message || ""}`);
  panel.dispatchEvent(new CustomEvent("e2llm:job-finished", { bubbles: true, detail: job }));
  if (job.state === "succeeded" && panel.dataset.next) location.assign(panel.dataset.next);
}

function showStep(panel, step) {
  const list = panel.querySelector("[data-job-steps]");
  if (!list) return;
  let item = list.querySelector(`[data-key="${CSS.escape(step.key)}"]`);
  if (!item) {
    item = panel.querySelector("template").content.querySelector("[data-step]").cloneNode(true);
    item.dataset.key = step.key;
    list.append(item);
  }
  item.dataset.state = step.state;
  item.querySelector(".label").textContent = step.label;
  item.querySelector(".detail").textContent = step.detail ?? "";
  const mark = icon(panel.querySelector("template"), `step-${step.state}`);
  item.querySelector(".tick").replaceWith(mark.firstElementChild);
  item.querySelector(".when").textContent =
    step.started_at && step.ended_at ? duration((new Date(step.ended_at) - new Date(step.started_at)) / 1000) : "";
}

function showLines(panel, lines, fresh) {
  const pre = panel.querySelector("[data-job-log]");
  if (!pre) return;
  const following = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
  const kept = fresh ? [] : pre.textContent.split("\n").filter(Boolean);
  pre.textContent = [...kept, ...lines.map((line) => line.text)].slice(-LINES_KEPT).join("\n");
  const box = pre.closest("[data-job-log-box]");
  if (box) box.hidden = pre.textContent === "";
  if (following) pre.scrollTop = pre.scrollHeight;
}

// A worker that lives is heard every second. While the page itself is cut off, the banner speaks instead.
function showSilence(panel, heardAt) {
  const seconds = (Date.now() - heardAt) / 1000;
  const cutOff = document.body.classList.contains("connection-lost");
  const silent = seconds >= SILENT_AFTER_SECONDS && panel.dataset.state === "running" && !cutOff;
  panel.querySelector("[data-job-silent]").hidden = !silent;
  panel.querySelector("[data-job-remaining]").hidden = silent;
  if (silent) panel.querySelector("[data-job-silent] [data-text]").textContent = `No sign of life for ${duration(seconds)}`;
}

function drive(panel) {
  panel.dataset.driven = "yes";
  let heardAt = Date.now();
  const watch = setInterval(() => showSilence(panel, heardAt), 1000);
  const stream = listen(panel.dataset.socket, {
    snapshot(event) {
      showJob(panel, event.job);
      event.steps.forEach((step) => showStep(panel, step));
      showLines(panel, event.lines, true);
      panel.dispatchEvent(new CustomEvent("e2llm:job-snapshot", { bubbles: true, detail: event }));
    },
    job: (event) => showJob(panel, event.job ?? event),
    step: (event) => showStep(panel, event.step ?? event),
    line: (event) => showLines(panel, [event.line ?? event], false),
    any: (event) => panel.dispatchEvent(new CustomEvent(`e2llm:job-${event.type}`, { bubbles: true, detail: event })),
    received(event) {
      heardAt = Date.now() - 1000 * (event.silent_seconds ?? 0);
      showSilence(panel, heardAt);
      if (panel.isConnected && !FINISHED.has(panel.dataset.state)) return;
      clearInterval(watch);
      if (!panel.isConnected) stream.stop();
    },
  });
}

export function driveAll(root = document) {
  root.querySelectorAll("[data-job]:not([data-driven])").forEach((panel) => FINISHED.has(panel.dataset.state) || drive(panel));
}
