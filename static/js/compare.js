// One question to two sets of settings; each side keeps its own conversation.
import { announce } from "./live.js";
import { ask } from "./playground-stream.js";
import { showFacts, showMarkdown } from "./playground-render.js";
import { lockModel, questionOf } from "./playground-settings.js";
import { duration } from "./time.js";

const root = document.querySelector("#compare");
const form = root.querySelector("[data-composer]");
const input = form.querySelector("textarea");
const bubble = root.querySelector("template[data-bubble]");
const sides = [...root.querySelectorAll("[data-side]")].map((element) => ({ element, messages: [] }));
let running = null;

function add(side, role, text) {
  const element = bubble.content.firstElementChild.cloneNode(true);
  element.classList.add(`bubble-${role}`);
  element.querySelector("[data-text]").textContent = text;
  side.element.querySelector("[data-log]").append(element);
  return element;
}

async function answer(side, signal) {
  const element = add(side, "assistant", "");
  const text = element.querySelector("[data-text]");
  let content = "";
  element.classList.add("is-streaming");
  const { facts, fault } = await ask(root.dataset.path, questionOf(side.element, side.messages), {
    signal,
    token(piece) { content += piece; showMarkdown(text, content); },
  });
  element.classList.remove("is-streaming");
  showFacts(element.querySelector("[data-facts]"), facts, duration);
  const notice = element.querySelector("[data-fault]");
  notice.hidden = !fault;
  notice.querySelector("[data-text]").textContent = fault;
  if (content) side.messages.push({ role: "assistant", content });
  else side.messages.pop();
  return content !== "";
}

function setRunning(controller) {
  running = controller;
  form.querySelector("[data-send]").disabled = controller !== null;
  form.querySelector("[data-stop]").hidden = controller === null;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const content = input.value.trim();
  if (!content || running) return;
  input.value = "";
  const controller = new AbortController();
  setRunning(controller);
  for (const side of sides) {
    side.messages.push({ role: "user", content });
    add(side, "user", content);
  }
  // On a phone the answers would stand a screen apart.
  if (matchMedia("(max-width: 575px)").matches) root.querySelectorAll("[data-settings]").forEach((settings) => { settings.open = false; });
  const answered = await Promise.all(sides.map((side) => answer(side, controller.signal)));
  setRunning(null);
  if (!answered.includes(true)) input.value = content;
  announce(answered.includes(false) ? "Not both have answered." : "Both answers are complete.");
  input.focus({ preventScroll: true });
});
for (const { element } of sides) {
  element.addEventListener("change", () => lockModel(element));
  lockModel(element);
}
setRunning(null);
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
});
root.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
form.querySelector("[data-stop]").addEventListener("click", () => running?.abort());
