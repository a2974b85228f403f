// What stands over the composer when a question came to nothing, with the way to its timeline when there is one.
import { timelineLink } from "./playground-render.js";

export function say(notice, text, tone = "danger", requestId = "") {
  notice.hidden = !text;
  notice.className = `notice notice-${tone} chat-notice`;
  notice.querySelector("[data-text]").replaceChildren(text, ...(requestId ? [" ", timelineLink(requestId)] : []));
}
