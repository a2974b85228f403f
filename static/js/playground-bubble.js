// One message of the chat as an element.
import { showFacts, showMarkdown } from "./playground-render.js";
import { duration } from "./time.js";

const UNFINISHED = ["length", "stopped", "cut"];

export function bubbleOf(template, message, index) {
  const element = template.content.firstElementChild.cloneNode(true);
  element.dataset.index = index;
  element.classList.add(`bubble-${message.role}`);
  element.querySelector("[data-who]").textContent = message.role === "user" ? "You:" : "Model:";
  const text = element.querySelector("[data-text]");
  if (message.role === "user") text.textContent = message.content;
  else showMarkdown(text, message.content);
  if (message.facts) showFacts(element.querySelector("[data-facts]"), message.facts, duration);
  const fault = element.querySelector("[data-fault]");
  fault.hidden = !message.fault;
  fault.querySelector("[data-text]").textContent = message.fault ?? "";
  element.querySelectorAll("[data-for]").forEach((tool) => { tool.hidden = tool.dataset.for !== message.role; });
  element.querySelector("[data-do='continue']").hidden = !UNFINISHED.includes(message.facts?.finish_reason);
  return element;
}
