/** Shows Markdown while it grows: blocks that are over are made once, only the last one again. */

import { fill, h, icon, toast } from "./dom.js";
import { codePieces, isReady, markdownBlocks, prepare } from "./libraries.js";
import { renderAll } from "./render.js";
import { words } from "./words.js";

/** @typedef {import("./libraries.js").MarkdownToken} Token */

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
   * @returns {boolean} whether all of it is shown; if not, ask again later
   */
  update(text, isOver) {
    const rest = text.replaceAll("\r\n", "\n").slice(this.length);
    if (!isReady(rest)) return false;
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
   * @param {Token} token
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
    const block = h("div", { class: "block", "data-kind": token.type }, token.type === "code" ? codeBlock(token, isSettled) : renderAll([token]));
    if (old) old.replaceWith(block);
    else this.root.append(block);
    this.blocks[index] = block;
  }
}

/**
 * Index of the block that may go on, as a list does behind an empty line; those before it are whole.
 * @param {Token[]} tokens
 */
function lastBlock(tokens) {
  let at = tokens.length - 1;
  while (at > 0 && tokens[at].type === "space") at--;
  return at;
}

/**
 * @param {Token} token
 * @param {boolean} isSettled
 */
function codeBlock(token, isSettled) {
  const code = token.text ?? "";
  const language = (token.lang ?? "").split(/\s/)[0].toLowerCase();
  const pieces = isSettled && code.length < LONGEST_COLOURED_CODE ? codePieces(code, language) : null;
  const inside = h("code", {}, pieces ? pieces.map(coloured) : document.createTextNode(code));
  const copy = h("button", { type: "button", class: "quiet small", onclick: () => copyText(inside.textContent) }, icon("copy"), words.copy);
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-head", "data-not-model-text": true }, h("span", {}, language), copy),
    h("pre", { tabindex: "0", "aria-label": words.code(language) }, inside),
  );
}

/** @param {import("./libraries.js").CodePiece} piece @returns {Node | string} */
function coloured(piece) {
  if (typeof piece === "string") return piece;
  return h("span", { class: `hljs-${piece.scope?.split(".")[0]}` }, piece.children.map(coloured));
}

/**
 * What a user wrote: as it is, but for code in fences.
 * @param {HTMLElement} root
 * @param {string} text
 */
export async function showPlain(root, text) {
  root.textContent = text;
  if (!/^(?:```|~~~)/m.test(text)) return;
  await prepare(text);
  /** @type {any[]} */
  const parts = [];
  for (const token of markdownBlocks(text)) {
    if (token.type === "code" && /^[`~]/.test(token.raw)) parts.push(codeBlock(token, true), "");
    else if (!parts.length || parts.at(-1) instanceof Node) parts.push(token.raw);
    else parts[parts.length - 1] += token.raw;
  }
  if (root.textContent === text) fill(root, parts.map((part) => (typeof part === "string" ? part.trim() && h("div", {}, part.replace(/^\n+|\s+$/g, "")) : part)));
}

/** @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast(words.copied);
  } catch {
    toast(words.cannotCopy);
  }
}
