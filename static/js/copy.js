// <button data-copy="#selector"> copies that element's text; <button data-copy-text="..."> copies the text itself.
import { announce } from "./live.js";

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = Object.assign(document.createElement("textarea"), { value: text }); // plain-http pages have no clipboard API
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-text]");
  if (!button) return;
  const source = button.dataset.copy ? document.querySelector(button.dataset.copy) : null;
  await copy(button.dataset.copyText ?? source.value ?? source.innerText);
  announce("Copied");
  const label = button.querySelector("[data-copy-label]");
  if (!label) return;
  const before = label.textContent;
  label.textContent = "Copied";
  setTimeout(() => { label.textContent = before; }, 1600);
});
