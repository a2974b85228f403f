// A classic script in <head>: it runs before the first paint, so that a dark page never flashes white.
(() => {
  const KEY = "e2llm-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem(KEY) ?? "auto";

  function apply() {
    const choice = chosen();
    const theme = choice === "auto" ? (system.matches ? "dark" : "light") : choice;
    document.documentElement.dataset.bsTheme = theme;
    document.querySelectorAll("[data-theme-choice]").forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.themeChoice === choice));
    });
    document.dispatchEvent(new CustomEvent("e2llm:theme", { detail: theme }));
  }

  apply();
  system.addEventListener("change", apply);
  addEventListener("storage", (event) => event.key === KEY && apply());
  document.addEventListener("DOMContentLoaded", apply);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-choice]");
    if (!button) return;
    localStorage.setItem(KEY, button.dataset.themeChoice);
    apply();
  });
})();
