/** Asks for the API key, once; it is kept for this session only. */

import { byId } from "./dom.js";
import { words } from "./words.js";

/** @type {boolean} whether a key was given before, so that it must have been wrong */
let wasGiven = false;

/** @returns {Promise<string>} */
export function askForKey() {
  const dialog = byId("key-dialog");
  const field = byId("key");
  let isGiven = false; // a key that a header can hold; Escape closes the dialog too, but nothing goes on without a key
  const show = () => {
    byId("key-problem").textContent = wasGiven ? words.wrongKey : "";
    field.value = "";
    dialog.showModal();
  };
  show();
  return new Promise((resolve) => {
    byId("key-form").onsubmit = () => {
      wasGiven = true;
      isGiven = /^[\x20-\x7e\x80-\xff]+$/.test(field.value);
    };
    dialog.onclose = () => (isGiven ? resolve(field.value.trim()) : show());
  });
}
