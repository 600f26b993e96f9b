/**
 * Makes elements of Markdown's tokens. No text ever becomes HTML: raw HTML is shown as it is written,
 * but for line breaks, which tables need. So what a model writes can do nothing.
 */

import { h } from "./dom.js";
import { writeFormula } from "./libraries.js";
import { words } from "./words.js";

/** @typedef {import("./libraries.js").MarkdownToken} Token */

const SAFE_LINK = /^(?:https?:|mailto:)/i;
const ENTITIES = /** @type {Record<string, string>} */ ({
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—", ndash: "–",
  bull: "•", middot: "·", times: "×", divide: "÷", plusmn: "±", deg: "°", euro: "€", pound: "£", larr: "←", rarr: "→", uarr: "↑", darr: "↓",
  le: "≤", ge: "≥", ne: "≠", asymp: "≈", infin: "∞", laquo: "«", raquo: "»", ldquo: "“", rdquo: "”", lsquo: "‘", rsquo: "’",
});

/** @type {Record<string, (token: Token) => any>} */
const MAKE = {
  space: () => null,
  hr: () => h("hr"),
  br: () => h("br"),
  heading: (token) => h(`h${token.depth}`, {}, renderAll(token.tokens)),
  paragraph: (token) => h("p", {}, renderAll(token.tokens)),
  blockquote: (token) => h("blockquote", {}, renderAll(token.tokens)),
  code: (token) => h("pre", { tabindex: "0" }, h("code", {}, token.text)),
  strong: (token) => h("strong", {}, renderAll(token.tokens)),
  em: (token) => h("em", {}, renderAll(token.tokens)),
  del: (token) => h("del", {}, renderAll(token.tokens)),
  codespan: (token) => h("code", {}, token.text),
  text: (token) => (token.tokens ? renderAll(token.tokens) : withEntities(token.text ?? "")),
  html: (token) => (/^<br\s*\/?>$/i.test(token.raw.trim()) ? h("br") : token.raw),
  def: () => null,
  checkbox: (token) => [h("input", { type: "checkbox", disabled: true, checked: token.checked, "aria-label": words.task }), " "],
  plain: (token) => h("p", { class: "plain" }, token.text),
  formula,
  link: (token) => link(token.href, token.title, renderAll(token.tokens)),
  // an image would tell its server that the text is read, so it is only linked
  image: (token) => link(token.href, token.title, withEntities(token.text || token.href)),
  list,
  table,
};

/** @param {Token[] | undefined} tokens @returns {any[]} */
export function renderAll(tokens) {
  return (tokens ?? []).flatMap((token) => (MAKE[token.type] ?? (() => token.raw))(token));
}

/** @param {Token} token */
function formula(token) {
  const element = h("span", { class: token.isDisplay ? "formula display" : "formula", "data-not-model-text": true });
  writeFormula(token.text ?? "", element, token.isDisplay);
  return element;
}

/**
 * Links open elsewhere and learn nothing of this page.
 * @param {string} href
 * @param {string | null} title
 * @param {any} inside
 */
function link(href, title, inside) {
  if (!SAFE_LINK.test(href)) return inside;
  return h("a", { href, title, target: "_blank", rel: "noopener noreferrer" }, inside);
}

/** @param {Token} token */
function list(token) {
  const items = token.items.map((/** @type {Token} */ item) => h("li", { class: item.task && "task" }, renderAll(item.tokens)));
  return h(token.ordered ? "ol" : "ul", { start: token.ordered && token.start !== 1 && token.start }, items);
}

/** A table scrolls by itself. @param {Token} token */
function table(token) {
  const row = (/** @type {any[]} */ cells, /** @type {string} */ kind) =>
    h("tr", {}, cells.map((cell) => h(kind, { class: cell.align && `to-${cell.align}` }, renderAll(cell.tokens))));
  const body = token.rows.map((/** @type {any[]} */ cells) => row(cells, "td"));
  return h(
    "div",
    { class: "table", tabindex: "0", role: "group", "aria-label": words.table },
    h("table", {}, h("thead", {}, row(token.header, "th")), h("tbody", {}, body)),
  );
}

/** @param {string} text */
function withEntities(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w+));/gi, (all, decimal, hexadecimal, name) => {
    if (name) return ENTITIES[name] ?? all;
    const code = decimal ? Number(decimal) : parseInt(hexadecimal, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : all;
  });
}
