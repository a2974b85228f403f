// A job that has ended changes the whole page; the end of a log is what one wants to see of it.
document.addEventListener("e2llm:job-finished", () => setTimeout(() => location.reload(), 600));
document.addEventListener("htmx:afterSettle", (event) => {
  event.target.querySelectorAll?.(".log pre").forEach((pre) => { pre.scrollTop = pre.scrollHeight; });
});
