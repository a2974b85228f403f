// <form data-confirm="What will happen" data-confirm-title="Stop deployment?" data-confirm-verb="Stop it"> asks once.
// The same attributes work on an element with hx-post / hx-delete (its hx-confirm text is used when data-confirm is absent).
const dialog = document.querySelector("#ask");

function ask(source, effect, isRefused = false) {
  dialog.querySelector("[data-ask-title]").textContent = source.dataset.confirmTitle ?? "Are you sure?";
  dialog.querySelector("[data-ask-effect]").textContent = effect;
  const verb = dialog.querySelector("[data-ask-verb]");
  verb.textContent = source.dataset.confirmVerb ?? "Yes, do it";
  verb.className = source.dataset.confirmTone === "primary" ? "btn btn-primary" : "btn btn-danger";
  verb.hidden = isRefused;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// data-confirm-from="/path/" adds what the server says of the effect at this moment, or why it cannot be.
async function effectOf(source) {
  if (!source.dataset.confirmFrom) return [source.dataset.confirm];
  const answer = await fetch(source.dataset.confirmFrom).catch(() => null);
  const added = answer?.ok ? await answer.text() : "What it would stop is not known: the server did not say.";
  if (answer?.headers.get("X-E2LLM-Refused")) return [added, true];
  return [`${source.dataset.confirm} ${added}`];
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  const source = event.submitter?.dataset.confirm ? event.submitter : form;
  if (!source.dataset.confirm || form.dataset.confirmed || form.matches("[hx-post], [hx-delete]")) return;
  event.preventDefault();
  if (!(await ask(source, ...(await effectOf(source))))) return;
  form.dataset.confirmed = "yes";
  form.requestSubmit(event.submitter);
  delete form.dataset.confirmed;
});

document.addEventListener("htmx:confirm", async (event) => {
  const source = event.detail.elt;
  const effect = source.dataset.confirm ?? event.detail.question;
  if (!effect) return;
  event.preventDefault();
  if (await ask(source, effect)) event.detail.issueRequest(true);
});
