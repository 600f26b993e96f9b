/** Dark, light, or as the system has it; kept in this browser. */

import { byId } from "./dom.js";

const KEY = "headstart-theme";
const THEMES = ["system", "light", "dark"];

export function startTheme() {
  const button = byId("theme");
  const apply = (/** @type {string} */ theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.title = `Colours: ${theme}`;
    button.setAttribute("aria-label", `Colours: ${theme}`);
  };
  let theme = localStorage.getItem(KEY) ?? "system";
  apply(theme);
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem(KEY, theme);
    apply(theme);
  });
}
