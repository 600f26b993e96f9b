/** The libraries of vendor/ (see vendor/libraries.json), with the types of what is used of them. */

import DOMPurify from "../vendor/purify.js";
import hljs from "../vendor/highlight.js";
import { Marked } from "../vendor/marked.js";
import UPlot from "../vendor/uplot.js";

/** @typedef {{type: string, raw: string, text?: string, lang?: string}} MarkdownToken */

/** Raw HTML is shown as it is written, but for line breaks, which tables need. */
const marked = new Marked({
  gfm: true,
  renderer: {
    html(/** @type {{text: string}} */ token) {
      return /^<br\s*\/?>$/i.test(token.text.trim()) ? "<br>" : escapeHtml(token.text);
    },
  },
});

const SAFE = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "input", "li", "ol",
    "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "checked", "class", "disabled", "href", "start", "title", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** The blocks of a text. @param {string} text @returns {MarkdownToken[]} */
export function markdownBlocks(text) {
  return marked.lexer(text);
}

/** Safe elements of blocks. @param {MarkdownToken[]} tokens @returns {DocumentFragment} */
export function renderBlocks(tokens) {
  return DOMPurify.sanitize(marked.parser(tokens), SAFE);
}

/** Whether code of this language can be coloured. @param {string} language */
export function isKnownLanguage(language) {
  return hljs.getLanguage(language) !== undefined;
}

/** Coloured code as safe elements. @param {string} code @param {string} language @returns {DocumentFragment} */
export function renderCode(code, language) {
  return DOMPurify.sanitize(hljs.highlight(code, { language, ignoreIllegals: true }).value, SAFE);
}

/** A chart over time. @param {any} options @param {any[][]} data @param {Element} target */
export function timeChart(options, data, target) {
  return new UPlot(options, data, target);
}

/** @param {string} text */
function escapeHtml(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
