// Model output is hostile until it went through here: Markdown to HTML, scripts and remote content taken out.
import { marked } from "../vendor/marked/marked.esm.js";
import DOMPurify from "../vendor/dompurify/purify.es.mjs";

const ALLOWED = {
  ALLOWED_TAGS: ["p", "br", "hr", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a", "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "input"],
  ALLOWED_ATTR: ["href", "title", "align", "start", "type", "checked", "disabled", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("rel", "noopener noreferrer nofollow");
    node.setAttribute("target", "_blank");
  }
  if (node.tagName === "INPUT" && node.getAttribute("type") !== "checkbox") node.remove();
});

function copyButton(text) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "btn btn-bare btn-sm code-copy" });
  button.dataset.copyText = text;
  button.append(Object.assign(document.createElement("span"), { textContent: "Copy" }));
  button.firstChild.dataset.copyLabel = "";
  return button;
}

// HTML in an answer is shown as text: parsing it, even to clean it, makes the browser report its styles and handlers.
const escaped = (text) => text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);
marked.use({ renderer: { html: ({ text }) => (/^<br\s*\/?>$/i.test(text.trim()) ? "<br>" : escaped(text)), image: ({ text }) => escaped(text) } });

export function showMarkdown(element, text) {
  element.innerHTML = DOMPurify.sanitize(marked.parse(text, { gfm: true, breaks: true, async: false }), ALLOWED);
  element.querySelectorAll("a:not([href])").forEach((link) => link.replaceWith(...link.childNodes));
  element.querySelectorAll("pre").forEach((pre) => {
    pre.setAttribute("tabindex", "0");
    pre.append(copyButton(pre.textContent));
  });
}

const ENDS = { length: "at the most tokens allowed", stopped: "stopped by you", cut: "cut off", unanswered: "without an answer", silent: "the model had nothing to say" };

// The replicas of the last part, behind those of what it went on from.
export function pathOf({ prefill_replica: prefill, decode_replica: decode, continued_from: before }) {
  const last = [...new Set([prefill, decode])].filter(Boolean).join(" → ");
  return [before, before === last ? "" : last].filter(Boolean).join(", then ");
}

export function factsOf(facts, time) {
  const known = [];
  const say = (label, value) => value !== null && value !== undefined && known.push([label, value]);
  say("Time in the queue", facts.waited_seconds == null ? null : time(facts.waited_seconds));
  say("Time to the first token", facts.ttft_seconds == null ? null : time(facts.ttft_seconds));
  say("Speed", facts.tokens_per_second == null ? null : `${Number(facts.tokens_per_second).toPrecision(3)} tokens/s`);
  say("Tokens", facts.completion_tokens == null ? null : `${facts.prompt_tokens == null ? "" : `${facts.prompt_tokens} in, `}${facts.completion_tokens} ${facts.finish_reason === "stopped" ? "received" : "out"}`);
  say("Path", pathOf(facts) || null);
  if (facts.handover && facts.handover !== "none") say("Hand-over", facts.handover === "hit" ? `hit, ${facts.cached_tokens} tokens reused` : "fell back to a plain prompt");
  say("Ended", ENDS[facts.finish_reason]);
  return known;
}

export function showFacts(element, facts, time) {
  element.replaceChildren(...factsOf(facts, time).map(([label, value]) => {
    const span = document.createElement("span");
    const name = document.createElement("b");
    name.textContent = `${label} `;
    span.append(name, value);
    return span;
  }));
  if (facts.request_id) element.append(timelineLink(facts.request_id));
}

export function timelineLink(requestId) {
  const link = document.createElement("a");
  link.href = `/traffic/requests/${encodeURIComponent(requestId)}/`;
  link.append("Timeline", Object.assign(document.createElement("span"), { className: "visually-hidden", textContent: " of this answer" }));
  return link;
}
