// The page of a running search: job.js holds the socket and re-sends its events; the chart and the numbers follow them,
// the stage diagram is fetched again when the best plan has become another one.
import { announce } from "./live.js";
import { draw, extend } from "./chart.js";

const REFRESH_MS = 700;
const panel = document.querySelector("[data-job]");
const chart = document.querySelector("#convergence");
const stages = document.querySelector("#best-plan");
let last = 0;
let waiting = 0;
let shown = null;
let newest = -1;

function traces(points) {
  const x = points.map((point) => point.number);
  return ["best_seconds", "mean_seconds", "bound_seconds"].map((name) => ({ x, y: points.map((point) => point[name]) }));
}

function show(name, text) {
  const place = document.querySelector(`[data-run-${name}]`);
  if (place) place.textContent = text;
}

function showNumbers(point, event) {
  show("generation", point.number);
  show("evaluations", point.evaluations.toLocaleString());
  show("best", event.best_text);
  show("gap", event.gap_text);
}

function refreshStages() {
  clearTimeout(waiting);
  const delay = Math.max(0, last + REFRESH_MS - Date.now());
  waiting = setTimeout(() => {
    last = Date.now();
    globalThis.htmx.ajax("GET", stages.dataset.path, { target: stages, swap: "innerHTML" });
  }, delay);
}

panel?.addEventListener("e2llm:job-snapshot", async ({ detail }) => {
  if (!detail.generations.length) return;
  const figure = JSON.parse(chart.querySelector("script[type='application/json']").textContent);
  traces(detail.generations).forEach((trace, index) => Object.assign(figure.data[index], trace));
  newest = detail.generations.at(-1).number;
  await draw(chart, figure);
  showNumbers(detail.generations.at(-1), detail);
  if (detail.plan) refreshStages();
});

panel?.addEventListener("e2llm:job-generations", ({ detail }) => {
  // A snapshot may already hold what the first message after it brings.
  const points = detail.points.filter((point) => point.number > newest);
  extend(chart, traces(points));
  const point = detail.points.at(-1);
  newest = point.number;
  showNumbers(point, detail);
  if (!detail.is_new_plan) return;
  refreshStages();
  if (shown === null || point.best_seconds < 0.9 * shown) {
    shown = point.best_seconds;
    announce(`Best plan so far: longest wait by the formula ${detail.best_text}`);
  }
});

// The result takes a moment to load: until then nothing here may say that no plan was found yet.
panel?.addEventListener("e2llm:job-finished", () => {
  document.querySelector("[data-run-ended]")?.toggleAttribute("hidden", false); // a launch has its own next step
  stages.hidden = !stages.querySelector(".replica");
  location.reload();
});
