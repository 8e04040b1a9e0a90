// Light, dark, or as the system has it.

import { byId } from "./elements.js";

const STORED = "draftwire-theme";
const THEMES = ["auto", "light", "dark"];
const button = byId("theme");

function apply(theme) {
  document.documentElement.dataset.theme = theme;
  button.textContent = `Theme: ${theme}`;
}

export function startTheme() {
  const stored = localStorage.getItem(STORED);
  apply(THEMES.includes(stored) ? stored : "auto");
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    localStorage.setItem(STORED, next);
    apply(next);
  });
}
