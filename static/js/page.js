// The one module that every page loads. Heavier modules are fetched only where their markup stands.
import "./confirm.js";
import "./copy.js";
import "./table.js";
import { showTimes } from "./time.js";

// A table that is wider than its frame has to be reachable by keyboard, or nobody can scroll it without a mouse.
function makeScrollable(frame) {
  if (frame.scrollWidth <= frame.clientWidth || frame.hasAttribute("tabindex")) return;
  frame.tabIndex = 0;
  frame.role = "region";
  const heading = frame.closest("section")?.querySelector("h2, h3")?.textContent.trim() ?? "Table";
  frame.ariaLabel = `${heading}, scrolls sideways`;
}

// The same for a row of stages, which scrolls on some screens only: elsewhere it is no stop for the keyboard.
const rows = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});

async function enliven(root) {
  root.querySelectorAll(".pipeline").forEach((row) => rows.observe(row));
  root.querySelectorAll(".table-scroll").forEach(makeScrollable);
  showTimes(root);
  if (root.querySelector("[data-chart]")) (await import("./chart.js")).drawAll(root);
  if (root.querySelector("[data-job]")) (await import("./job.js")).driveAll(root);
}

enliven(document);
document.addEventListener("htmx:load", (event) => enliven(event.detail.elt.parentElement ?? document));
// A part that is fetched again and again stays as it is while somebody is at work in it: a question about it is open, a log
// or a command line is unfolded, or the keyboard has come to one of its buttons.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { requestConfig, target } = event.detail;
  if (!requestConfig.elt.matches("[hx-trigger*='every ']")) return;
  if (document.querySelector("dialog[open]") || target.querySelector("details[open], :focus-visible")) event.detail.shouldSwap = false;
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-wrap-toggle]");
  if (!button) return;
  button.setAttribute("aria-pressed", String(button.closest(".log").classList.toggle("is-wrapped")));
});
for (const type of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(type, () => showFailure("The server did not answer. Check that it is running, then try again."));
}
document.addEventListener("htmx:responseError", (event) => {
  showFailure(`The server answered with ${event.detail.xhr.status}. Nothing was changed; reload the page and try again.`);
});

function showFailure(text) {
  const template = document.querySelector("#failure-template");
  const notice = template.content.firstElementChild.cloneNode(true);
  notice.querySelector("[data-text]").textContent = text;
  document.querySelector("#messages").replaceChildren(notice);
}
