/** The names of speculators and the style that each is shown in. */

import { h } from "./dom.js";
import { words } from "./words.js";

/** Styles of css/tint.css. */
export const NUM_STYLES = 6;

/** @type {string[]} in the order in which they got their styles */
const known = [];

/** Give these speculators the first styles. @param {string[]} names */
export function knowSpeculators(names) {
  for (const name of names) styleOf(name);
}

/** Index of a speculator's style. @param {string} name */
export function styleOf(name) {
  if (!known.includes(name)) known.push(name);
  return known.indexOf(name) % NUM_STYLES;
}

/** What people read. @param {string} name */
export function labelOf(name) {
  return name === "" ? words.modelItself : name;
}

/**
 * A sample of a speculator's tint with its name.
 * @param {string} name
 * @param {string} [count]
 */
export function swatch(name, count) {
  const style = name === "" ? "own" : `draft-${styleOf(name)}`;
  return h("span", { class: "swatch", "data-source": name, tabindex: count && "0" }, h("span", { class: `sample ${style}` }, labelOf(name)), count && ` ${count}`);
}
