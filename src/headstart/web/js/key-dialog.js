/** Asks for the API key, once; it is kept for this session only. */

import { byId } from "./dom.js";
import { words } from "./words.js";

/** @type {boolean} whether a key was given before, so that it must have been wrong */
let wasGiven = false;

/** @returns {Promise<string>} */
export function askForKey() {
  const dialog = byId("key-dialog");
  const field = byId("key");
  byId("key-problem").textContent = wasGiven ? words.wrongKey : "";
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    byId("key-form").addEventListener(
      "submit",
      (/** @type {Event} */ event) => {
        event.preventDefault();
        wasGiven = true;
        dialog.close();
        resolve(field.value.trim());
      },
      { once: true },
    );
  });
}
