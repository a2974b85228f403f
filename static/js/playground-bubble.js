// One message of the chat as an element.
import { showFacts, showMarkdown } from "./playground-render.js";
import { showVariants } from "./playground-variants.js";
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
  showVariants(element, message);
  return element;
}

// Draws what came of an answer once a frame at most, and follows its end while the reader is there.
export function painterOf(log, element, message) {
  let frame = 0;
  const show = () => {
    frame = 0;
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    showMarkdown(element.querySelector("[data-text]"), message.content);
    if (follows) log.scrollTop = log.scrollHeight;
  };
  return { paint() { frame ||= requestAnimationFrame(show); }, stop() { cancelAnimationFrame(frame); } };
}
