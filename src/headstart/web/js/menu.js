/** A small menu at a button: opens on click, walks with arrow keys, closes on Escape or elsewhere. */

import { h } from "./dom.js";

/**
 * @param {HTMLElement} button
 * @param {[string, () => void][]} entries
 */
export function openMenu(button, entries) {
  const items = entries.map(([label, act]) =>
    h("button", { type: "button", role: "menuitem", onclick: () => (menu.hidePopover(), act()) }, label),
  );
  const menu = h("div", { popover: "auto", role: "menu", class: "menu" }, items);
  menu.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") {
      event.preventDefault(); // it stops no answer
      menu.hidePopover();
    }
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    items[(items.indexOf(/** @type {any} */ (document.activeElement)) + step + items.length) % items.length].focus();
  });
  menu.addEventListener("toggle", (/** @type {any} */ event) => {
    if (event.newState !== "closed") return;
    menu.remove();
    button.setAttribute("aria-expanded", "false");
  });
  button.parentElement?.append(menu);
  button.setAttribute("aria-expanded", "true");
  menu.showPopover({ source: button });
  const box = button.getBoundingClientRect();
  menu.style.left = `${Math.max(8, Math.min(box.left, innerWidth - menu.offsetWidth - 8))}px`;
  menu.style.top = `${box.bottom + menu.offsetHeight > innerHeight - 8 ? box.top - menu.offsetHeight : box.bottom}px`;
  items[0].focus();
}
