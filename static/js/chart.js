// <figure class="chart" data-chart> holds the plotly figure of charts.py as {{ figure|json_script }},
// a .chart-canvas to draw in and a <table> with the same numbers behind [data-table-toggle].
// Plotly is fetched only here, after the page has been painted.
let loading = null;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const source = new URL("../vendor/plotly/plotly-basic.min.js", import.meta.url).href;
    const script = Object.assign(document.createElement("script"), { src: source });
    script.addEventListener("load", () => resolve(globalThis.Plotly));
    script.addEventListener("error", () => reject(new Error("plotly did not load")));
    document.head.append(script);
  });
  return loading;
}

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Figures name colours as "var(--decode)"; they are looked up in the theme that is on now.
function resolveColours(value) {
  if (typeof value === "string") return value.replace(/^var\(--([\w-]+)\)$/, (_, name) => token(name));
  if (Array.isArray(value)) return value.map(resolveColours);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, resolveColours(part)]));
  }
  return value;
}

function axis(given) {
  return { gridcolor: token("line"), linecolor: token("line-strong"), zerolinecolor: token("line-strong"), automargin: true, ...given };
}

function layout(given) {
  const axes = Object.fromEntries(
    ["xaxis", "yaxis", ...Object.keys(given)].filter((key) => /^[xy]axis\d*$/.test(key)).map((key) => [key, axis(given[key])]),
  );
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 12, t: 12, b: 8 },
    colorway: ["accent", "decode", "prefill", "mixed", "danger", "ok"].map(token), hovermode: "x unified", autosize: true,
    legend: { orientation: "h", traceorder: "normal", y: 1.02, yanchor: "bottom", x: 0 }, ...given, ...axes,
    font: { family: token("font"), size: 12.5, color: token("ink-2"), ...given.font },
    hoverlabel: { bgcolor: token("raised"), bordercolor: token("line-strong"), font: { color: token("ink"), family: token("font") } },
  };
}

const OPTIONS = { displayModeBar: false, responsive: true };

export async function draw(frame, figure = JSON.parse(frame.querySelector("script[type='application/json']").textContent)) {
  const canvas = frame.querySelector(".chart-canvas");
  frame.figure = figure;
  const coloured = resolveColours(figure);
  try {
    await (await plotly()).react(canvas, coloured.data, layout(coloured.layout ?? {}), OPTIONS);
    canvas.classList.add("is-drawn");
  } catch (error) {
    showTable(frame, true);
    throw error;
  }
}

// points: [{x: [..], y: [..]}, ...] one entry per trace, added at the end; keep bounds what stays drawn.
export async function extend(frame, points, keep = 2000) {
  if (!frame.figure) await draw(frame);
  const indices = points.map((_, index) => index).filter((index) => points[index].x.length);
  for (const index of indices) {
    const trace = frame.figure.data[index];
    trace.x = [...trace.x, ...points[index].x].slice(-keep);
    trace.y = [...trace.y, ...points[index].y].slice(-keep);
  }
  await draw(frame, frame.figure);
}

function showTable(frame, shown) {
  const table = frame.querySelector("[data-table]");
  if (!table) return;
  table.hidden = !shown;
  frame.querySelector(".chart-canvas").hidden = shown;
  const button = frame.querySelector("[data-table-toggle]");
  button?.setAttribute("aria-pressed", String(shown));
  if (button) button.textContent = shown ? "Show chart" : "Show table";
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-table-toggle]");
  if (button) showTable(button.closest("[data-chart]"), button.getAttribute("aria-pressed") !== "true");
});

document.addEventListener("e2llm:theme", () => {
  document.querySelectorAll("[data-chart]").forEach((frame) => frame.figure && draw(frame, frame.figure));
});

const nearby = new IntersectionObserver((entries) => {
  entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => {
    nearby.unobserve(target);
    if (!target.figure) draw(target);
  });
}, { rootMargin: "200px" });

export function drawAll(root = document) {
  root.querySelectorAll("[data-chart]").forEach((frame) => frame.figure || nearby.observe(frame));
}
