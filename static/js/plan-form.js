// Presets of the new-plan form fill the fields in place; without script they are links to the filled form.
document.addEventListener("click", (event) => {
  const preset = event.target.closest("[data-preset]");
  if (!preset) return;
  event.preventDefault();
  for (const [name, value] of Object.entries(JSON.parse(preset.dataset.preset))) {
    const field = document.querySelector(`#plan-form [name="${name}"]`);
    field.value = value;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }
});

// Ticking every device at once, or none.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-tick]");
  if (!button) return;
  const boxes = [...document.querySelectorAll(`#plan-form [name="${button.dataset.tick}"]`)];
  const all = boxes.every((box) => box.checked);
  boxes.forEach((box) => { box.checked = !all; });
  boxes[0]?.dispatchEvent(new Event("change", { bubbles: true }));
});
