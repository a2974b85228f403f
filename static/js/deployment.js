// The live part of a deployment's page is fetched every two seconds, but not while a command line or a log is open in it.
const live = document.querySelector("#live");

document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.detail.elt === live && live.querySelector("details[open]")) event.preventDefault();
});
document.addEventListener("e2llm:job-finished", () => setTimeout(() => location.reload(), 600));
document.addEventListener("htmx:afterSettle", (event) => {
  event.target.querySelectorAll?.(".log pre").forEach((pre) => { pre.scrollTop = pre.scrollHeight; });
});
