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
