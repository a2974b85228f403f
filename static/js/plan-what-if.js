// Sliders of the what-if form: each drives a number from a tenth to ten times of what the plan was made for.
const STEPS_PER_DECADE = 20;

function rounded(value, step) {
  return step === "1" ? Math.max(1, Math.round(value)) : Number(value.toPrecision(2));
}

for (const slider of document.querySelectorAll("[data-drives]")) {
  const number = document.querySelector(slider.dataset.drives);
  const base = Number(number.value);
  slider.hidden = false;
  slider.addEventListener("input", () => {
    const value = base * 10 ** (Number(slider.value) / STEPS_PER_DECADE);
    number.value = rounded(value, number.step);
    slider.ariaValueText = number.value;
    number.dispatchEvent(new Event("change", { bubbles: true }));
  });
}
