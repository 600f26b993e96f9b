/** All words of the page, in the user's language: one file for each in words/. */

const OFFERED = ["en", "de"];

const preferred = (globalThis.navigator?.languages ?? []).map((name) => name.slice(0, 2));
export const language = preferred.find((name) => OFFERED.includes(name)) ?? OFFERED[0];

/** @type {typeof import("../words/en.js").words} */
export const words = (await import(`../words/${language}.js`)).words;

/**
 * Write words into what index.html leaves empty: `data-words` names the text, `data-label` a name
 * that screen readers say and a tooltip shows.
 * @param {ParentNode} root
 */
export function fillWords(root) {
  const of = (/** @type {string | undefined} */ name) => String(words[/** @type {keyof typeof words} */ (name)]);
  for (const element of root.querySelectorAll("[data-words]")) element.textContent = of(/** @type {any} */ (element).dataset.words);
  for (const element of root.querySelectorAll("[data-placeholder]")) element.setAttribute("placeholder", of(/** @type {any} */ (element).dataset.placeholder));
  for (const element of root.querySelectorAll("[data-label]")) {
    const label = of(/** @type {any} */ (element).dataset.label);
    element.setAttribute("aria-label", label);
    if (element.matches("button, select, label, a")) element.setAttribute("title", label);
  }
}
