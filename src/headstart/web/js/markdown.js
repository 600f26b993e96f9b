/** Shows Markdown while it grows: blocks that are over are made once, only the last one again. */

import { h, icon, toast } from "./dom.js";
import { isKnownLanguage, markdownBlocks, renderBlocks, renderCode } from "./libraries.js";

/** Longer code stays plain: colouring it would take longer than a frame. */
const LONGEST_COLOURED_CODE = 60_000;

/** Characters that are read and shown at once: some milliseconds. */
const PIECE = 1500;

export class MarkdownView {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.length = 0; // of the text that is settled
    /** @type {HTMLElement[]} */
    this.blocks = [];
    this.numSettled = 0;
  }

  /**
   * Show some more of a text that begins with what was shown before; of much that is new, not all
   * at once, so that the page does not stutter.
   * @param {string} text
   * @param {boolean} isOver
   * @returns {boolean} whether all of it is shown
   */
  update(text, isOver) {
    const rest = text.replaceAll("\r\n", "\n").slice(this.length);
    let length = PIECE;
    let tokens = markdownBlocks(rest.slice(0, length));
    while (length < rest.length && lastBlock(tokens) < 1) tokens = markdownBlocks(rest.slice(0, (length *= 2)));
    const isAll = length >= rest.length;
    const numOver = isOver && isAll ? tokens.length : Math.max(0, lastBlock(tokens));
    for (const token of tokens.slice(0, numOver)) {
      this.length += token.raw.length;
      if (token.type !== "space") this.place(this.numSettled++, token, true);
    }
    const last = isOver || !isAll ? undefined : tokens[numOver];
    let num = this.numSettled;
    if (last && last.type !== "space") this.place(num++, last, false);
    for (const block of this.blocks.splice(num)) block.remove();
    return isAll;
  }

  /**
   * @param {number} index
   * @param {import("./libraries.js").MarkdownToken} token
   * @param {boolean} isSettled
   */
  place(index, token, isSettled) {
    const old = this.blocks[index];
    if (token.type === "code" && !isSettled && old?.dataset.kind === "code") {
      const text = /** @type {Text | null} */ (old.querySelector("code")?.firstChild);
      const code = token.text ?? "";
      if (text && code.startsWith(text.data)) {
        text.appendData(code.slice(text.length)); // cheaper than all of a long program again
        return;
      }
    }
    const block = h("div", { class: "block", "data-kind": token.type });
    block.append(token.type === "code" ? codeBlock(token, isSettled) : linksOutside(renderBlocks([token])));
    if (old) old.replaceWith(block);
    else this.root.append(block);
    this.blocks[index] = block;
  }
}

/**
 * Index of the block that may go on, as a list does behind an empty line; those before it are whole.
 * @param {import("./libraries.js").MarkdownToken[]} tokens
 */
function lastBlock(tokens) {
  let at = tokens.length - 1;
  while (at > 0 && tokens[at].type === "space") at--;
  return at;
}

/**
 * @param {import("./libraries.js").MarkdownToken} token
 * @param {boolean} isSettled
 */
function codeBlock(token, isSettled) {
  const code = token.text ?? "";
  const language = (token.lang ?? "").split(/\s/)[0].toLowerCase();
  const isColoured = isSettled && isKnownLanguage(language) && code.length < LONGEST_COLOURED_CODE;
  const inside = h("code", {}, isColoured ? renderCode(code, language) : document.createTextNode(code));
  const copy = h("button", { type: "button", class: "quiet small", onclick: () => copyText(inside.textContent) }, icon("copy"), "Copy");
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-head", "data-not-model-text": true }, h("span", {}, language || "text"), copy),
    h("pre", { tabindex: "0", "aria-label": `Code, ${language || "text"}` }, inside),
  );
}

/** @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast("The browser does not allow copying here: it wants https or localhost");
  }
}

/** Links open elsewhere and learn nothing of this page; tables scroll by themselves. @param {DocumentFragment} fragment */
function linksOutside(fragment) {
  for (const link of fragment.querySelectorAll("a[href]")) {
    link.setAttribute("target", "_blank");
    link.setAttribute("rel", "noopener noreferrer");
  }
  for (const box of fragment.querySelectorAll("input")) box.setAttribute("aria-label", "task");
  for (const table of fragment.querySelectorAll("table")) {
    const around = h("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(around);
    around.append(table);
  }
  return fragment;
}
