// The chat: one list of messages, drawn from scratch where it changes; an answer streams into the last bubble.
import { announce } from "./live.js";
import { ask, keep } from "./playground-stream.js";
import { showCode } from "./playground-code.js";
import { showFacts, showMarkdown } from "./playground-render.js";
import { duration } from "./time.js";

const root = document.querySelector("#playground");
const log = root.querySelector("[data-log]");
const empty = root.querySelector("[data-empty]");
const form = root.querySelector("[data-composer]");
const input = form.querySelector("textarea");
const bubble = root.querySelector("template[data-bubble]");
const part = (name) => form.querySelector(`[data-${name}]`);
const setting = (name) => root.querySelector(`[name="${name}"]`).value;
let messages = JSON.parse(document.querySelector("#messages-kept").textContent);
let chat = Number(root.dataset.chat) || null;
let running = null;

function question(upTo = messages.length) {
  const system = setting("system").trim();
  const history = messages.slice(0, upTo).filter((message) => message.content).map(({ role, content }) => ({ role, content }));
  return {
    model: setting("model"),
    temperature: Number(setting("temperature")),
    max_tokens: Number(setting("max_tokens")),
    messages: [...(system ? [{ role: "system", content: system }] : []), ...history],
  };
}

function draw(message, index) {
  const element = bubble.content.firstElementChild.cloneNode(true);
  element.dataset.index = index;
  element.classList.add(`bubble-${message.role}`);
  element.querySelector("[data-who]").textContent = message.role === "user" ? "You:" : "Model:";
  const text = element.querySelector("[data-text]");
  if (message.role === "user") text.textContent = message.content;
  else showMarkdown(text, message.content);
  if (message.facts) showFacts(element.querySelector("[data-facts]"), message.facts, duration);
  const fault = element.querySelector("[data-fault]");
  fault.hidden = !message.error;
  fault.querySelector("[data-text]").textContent = message.error ?? "";
  element.querySelectorAll("[data-for]").forEach((tool) => { tool.hidden = tool.dataset.for !== message.role; });
  element.querySelector("[data-do='continue']").hidden = !(message.role === "assistant" && message.isCut);
  return element;
}

function drawAll() {
  log.querySelectorAll(".bubble").forEach((element) => element.remove());
  log.append(...messages.map(draw));
  empty.hidden = messages.length > 0;
  showCode(root, root.dataset.endpoint, question());
  log.scrollTop = log.scrollHeight;
}

function setRunning(controller) {
  running = controller;
  part("send").hidden = controller !== null;
  part("stop").hidden = controller === null;
  root.toggleAttribute("aria-busy", controller !== null);
}

// Asked to continue, some builds of llama.cpp send the beginning once more.
function joined(before, received) {
  if (before.startsWith(received)) return before;
  return received.startsWith(before) ? received : before + received;
}

async function answer(message) {
  const asked = question(messages.indexOf(message) + (message.content ? 1 : 0));
  const controller = new AbortController();
  Object.assign(message, { error: "", isCut: false });
  setRunning(controller);
  drawAll();
  const element = log.querySelector(`[data-index="${messages.indexOf(message)}"]`);
  element.classList.add("is-streaming");
  const before = message.content;
  let received = "";
  let frame = 0;
  const show = () => {
    frame = 0;
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    showMarkdown(element.querySelector("[data-text]"), message.content);
    if (follows) log.scrollTop = log.scrollHeight;
  };
  try {
    await ask(root.dataset.path, asked, {
      signal: controller.signal,
      token(text) { received += text; message.content = joined(before, received); frame ||= requestAnimationFrame(show); },
      done(facts) { message.facts = facts; message.isCut = facts.finish_reason === "length"; },
    });
    announce("The answer is complete.");
  } catch (error) {
    message.isCut = true;
    if (error.name !== "AbortError") message.error = error.message;
    announce(error.name === "AbortError" ? "Stopped." : error.message);
  }
  cancelAnimationFrame(frame);
  setRunning(null);
  drawAll();
  keepChat();
  input.focus({ preventScroll: true });
}

async function keepChat() {
  const kept = await keep(root.dataset.keep, { id: chat, messages: messages.filter((message) => message.content) });
  if (!kept || kept.id === chat) return;
  chat = kept.id;
  history.replaceState(null, "", `?chat=${chat}`);
  const entry = document.createElement("li");
  entry.append(Object.assign(document.createElement("a"), { href: `?chat=${chat}`, textContent: kept.title }));
  root.querySelector("[data-chats]").prepend(entry);
}

function startAnswer() {
  const message = { role: "assistant", content: "" };
  messages.push(message);
  answer(message);
}

const deeds = {
  regenerate(index) { messages.length = index; startAnswer(); },
  continue(index) { messages.length = index + 1; answer(messages[index]); },
  edit(index) { input.value = messages[index].content; messages.length = index; drawAll(); input.focus(); },
  async copy(index) { await navigator.clipboard.writeText(messages[index].content); announce("Copied."); },
};

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const content = input.value.trim();
  if (!content || running) return;
  input.value = "";
  messages.push({ role: "user", content });
  form.closest(".chat").scrollIntoView({ block: "nearest" });
  startAnswer();
});
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
});
part("stop").addEventListener("click", () => running?.abort());
root.addEventListener("click", (event) => {
  const tool = event.target.closest("[data-do]");
  if (tool && !running) deeds[tool.dataset.do](Number(tool.closest("[data-index]").dataset.index));
  const prompt = event.target.closest("[data-prompt]");
  if (prompt) { input.value = prompt.textContent.trim(); form.requestSubmit(); }
  if (event.target.closest("[data-new]") && !running) { messages = []; chat = null; history.replaceState(null, "", location.pathname); drawAll(); input.focus(); }
});
root.addEventListener("change", () => showCode(root, root.dataset.endpoint, question()));
drawAll();
