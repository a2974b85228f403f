// The what-if form. What is chosen is asked for at once, what is typed after a short rest. An answer under way is waited
// for a moment before a newer question replaces it, so that a slider which is dragged shows what it passes.
const STEPS_PER_DECADE = 20;
const TYPING_MS = 250;
const PATIENCE_MS = 1500;
const form = document.querySelector("#what-if-form");
const result = document.querySelector("#what-if-result");
let askedAt = 0;
let isNewer = false;
let isReset = false;
let timer = 0;

function ask() {
  isReset = false;
  clearTimeout(timer);
  const left = askedAt ? askedAt + PATIENCE_MS - performance.now() : 0;
  isNewer = left > 0;
  if (isNewer) timer = setTimeout(ask, left);
  else form.dispatchEvent(new Event("what-if"));
}

function askSoon() {
  clearTimeout(timer);
  timer = setTimeout(ask, TYPING_MS);
}

function rounded(value, step) {
  return step === "1" ? Math.max(1, Math.round(value)) : Number(value.toPrecision(2));
}

// Each slider drives a number from a tenth to ten times of what the plan was made for.
function drive(slider) {
  const number = document.querySelector(slider.dataset.drives);
  const base = Number(number.defaultValue);
  slider.hidden = false;
  slider.ariaValueText = number.value;
  slider.addEventListener("input", () => {
    number.value = rounded(base * 10 ** (Number(slider.value) / STEPS_PER_DECADE), number.step);
    slider.ariaValueText = number.value;
    ask();
  });
  number.addEventListener("input", () => {
    const steps = STEPS_PER_DECADE * Math.log10(Number(number.value) / base);
    if (Number.isFinite(steps)) slider.value = steps;
    slider.ariaValueText = number.value;
    askSoon();
  });
}

function markFaults() {
  form.querySelectorAll(".what-if-error").forEach((place) => {
    const field = document.getElementById(place.id.replace(/_error$/, ""));
    if (!field?.matches("input, select")) return;
    const isWrong = place.childElementCount > 0;
    field.classList.toggle("is-invalid", isWrong);
    if (isWrong) field.ariaInvalid = "true";
    else field.removeAttribute("aria-invalid");
  });
}

form?.querySelectorAll("[data-drives]").forEach(drive);
document.body.addEventListener("htmx:oobAfterSwap", () => form && markFaults());
form?.addEventListener("change", (event) => event.target.matches("[type='range']") || ask());
form?.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.target.type !== "number") return;
  event.preventDefault(); // a plan of its own is made by the button alone
  ask();
});
form?.addEventListener("reset", () => {
  isReset = true;
  clearTimeout(timer);
  form.dispatchEvent(new Event("htmx:abort"));
  result.replaceChildren();
  form.querySelectorAll(".what-if-error").forEach((place) => place.replaceChildren());
  markFaults();
  document.querySelector("#what-if-verdict").textContent = "Nothing is changed";
});
result?.addEventListener("htmx:beforeSwap", (event) => { event.detail.shouldSwap &&= !isReset; });
form?.addEventListener("htmx:beforeRequest", () => { askedAt = performance.now(); result.ariaBusy = "true"; });
form?.addEventListener("htmx:afterRequest", () => {
  askedAt = 0;
  result.ariaBusy = "false";
  if (isNewer) ask();
});
