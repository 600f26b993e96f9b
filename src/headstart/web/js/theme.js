/** Light or dark: as the system has it until the user turns it over; kept in this browser. */

const KEY = "headstart-theme";

export function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  root.dataset.theme = localStorage.getItem(KEY) ?? "";
  document.getElementById("theme")?.addEventListener("click", () => {
    const isDark = (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
    const wanted = isDark ? "light" : "dark";
    root.dataset.theme = system.matches === (wanted === "dark") ? "" : wanted;
    localStorage.setItem(KEY, root.dataset.theme);
  });
}
