// The chat: one list of messages, drawn from scratch where it changes; an answer streams into the last bubble.
import { copy } from "./copy.js";
import { announce } from "./live.js";
import { bubbleOf, painterOf } from "./playground-bubble.js";
import { showCode } from "./playground-code.js";
import { keepChat } from "./playground-keep.js";
import { say } from "./playground-notice.js";
import { pathOf } from "./playground-render.js";
import { lockModel, questionOf, withoutSystem } from "./playground-settings.js";
import { ask } from "./playground-stream.js";
import { askedAgain, turned } from "./playground-variants.js";
import { duration } from "./time.js";

const root = document.querySelector("#playground");
const log = root.querySelector("[data-log]");
const empty = root.querySelector("[data-empty]");
const form = root.querySelector("[data-composer]");
const input = form.querySelector("textarea");
const notice = root.querySelector("[data-notice]");
const editNote = root.querySelector("[data-editing]");
const bubble = root.querySelector("template[data-bubble]");
const part = (name) => form.querySelector(`[data-${name}]`);
let messages = withoutSystem(root, JSON.parse(document.querySelector("#messages-kept").textContent));
let chat = Number(root.dataset.chat) || null;
let running = null;
let editing = null;

function question(upTo = messages.length) {
  const history = messages.slice(0, upTo).filter((message) => message.content).map(({ role, content }) => ({ role, content }));
  return questionOf(root, history);
}

function drawAll() {
  log.querySelectorAll(".bubble").forEach((element) => element.remove());
  log.append(...messages.map((message, index) => bubbleOf(bubble, message, index)));
  empty.hidden = messages.length > 0;
  showCode(root, root.dataset.endpoint, question());
  log.scrollTop = log.scrollHeight;
}

// Send stays where it is while Stop stands beside it, so that a double click sends once and stops nothing.
function setRunning(controller) {
  running = controller;
  part("send").disabled = controller !== null;
  part("stop").hidden = controller === null;
  root.toggleAttribute("aria-busy", controller !== null);
}

function setEditing(index) {
  editing = index;
  editNote.hidden = index === null;
  log.querySelectorAll(".bubble").forEach((element) => element.classList.toggle("is-replaced", index !== null && Number(element.dataset.index) >= index));
  input.value = index === null ? "" : messages[index].content;
  input.focus();
}

// Streams the answer into the message; how it ended, and what was received of it.
async function answer(message) {
  const index = messages.indexOf(message);
  const asked = question(index + (message.content ? 1 : 0));
  const controller = new AbortController();
  const from = message.content ? pathOf(message.facts ?? {}) : "";
  message.fault = "";
  delete message.facts;
  setRunning(controller);
  drawAll();
  const element = log.querySelector(`[data-index="${index}"]`);
  element.classList.add("is-streaming");
  element.querySelectorAll("[data-do]").forEach((tool) => { tool.hidden = true; });
  let received = "";
  const painter = painterOf(log, element, message);
  const outcome = await ask(root.dataset.path, asked, {
    signal: controller.signal,
    token(text) { received += text; message.content += text; painter.paint(); },
  });
  painter.stop();
  setRunning(null);
  if (from) outcome.facts.continued_from = from;
  Object.assign(message, outcome);
  return { ...outcome, received };
}

// Makes the change and asks; when not a word comes back, everything is again as it was, with the reason said.
async function attempt(change, typed = "") {
  const before = messages.map((message) => ({ ...message }));
  say(notice, "");
  change();
  const { facts, fault, received } = await answer(messages.at(-1));
  const isStopped = facts.finish_reason === "stopped";
  if (!received && (fault || isStopped)) {
    messages = before;
    input.value = [typed, input.value].filter(Boolean).join("\n");
    say(notice, fault || `Stopped by you before the first token, after ${duration(facts.stayed_seconds)}.`, isStopped ? "info" : "danger", facts.request_id);
  } else {
    announce(fault || (isStopped ? "Stopped by you." : "The answer is complete."));
    keep();
  }
  drawAll();
  input.focus({ preventScroll: true });
}

function turn(index, by) {
  messages = turned(messages, index, by);
  keep();
  drawAll();
  log.querySelector(`[data-index="${index}"] [data-variants] :enabled`).focus();
}

const keep = () => keepChat(root, chat, messages).then((kept) => { chat = kept; });
const emptyAnswer = () => ({ role: "assistant", content: "" });

const deeds = {
  regenerate(index) { attempt(() => { messages = askedAgain(messages, index); }); },
  continue(index) { attempt(() => messages.splice(index + 1)); },
  edit: setEditing,
  earlier(index) { turn(index, -1); },
  later(index) { turn(index, 1); },
  async copy(index) { await copy(messages[index].content); announce("Copied."); },
};

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const content = input.value.trim();
  if (!content || running) return;
  const from = editing ?? messages.length;
  setEditing(null);
  form.closest(".chat").scrollIntoView({ block: "nearest" });
  attempt(() => messages.splice(from, messages.length, { role: "user", content }, emptyAnswer()), content);
});
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
});
root.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else if (editing !== null) setEditing(null);
});
part("stop").addEventListener("click", () => running?.abort());
root.addEventListener("click", (event) => {
  const tool = event.target.closest("[data-do]");
  if (tool && !running) deeds[tool.dataset.do](Number(tool.closest("[data-index]").dataset.index));
  const prompt = event.target.closest("[data-prompt]");
  if (prompt && !running) { input.value = prompt.textContent.trim(); form.requestSubmit(); }
  if (event.target.closest("[data-cancel-edit]")) setEditing(null);
  if (event.target.closest("[data-new]") && !running) { messages = []; chat = null; say(notice, ""); history.replaceState(null, "", location.pathname); setEditing(null); drawAll(); }
});
root.addEventListener("change", () => { lockModel(root); showCode(root, root.dataset.endpoint, question()); });
lockModel(root);
drawAll();
setRunning(null);
