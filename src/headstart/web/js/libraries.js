/** The libraries of vendor/ (see vendor/libraries.json), each loaded when a text first needs it. */

/** @typedef {{type: string, raw: string, text?: string, lang?: string, tokens?: any[], [name: string]: any}} MarkdownToken */

const MODULES = /** @type {Record<string, () => Promise<any>>} */ ({
  marked: async () => withMath(new (await import("../vendor/marked.js")).Marked({ gfm: true })),
  highlight: async () => (await import("../vendor/highlight.js")).default,
  katex: async () => import("../vendor/katex.js").then(() => /** @type {any} */ (globalThis).katex),
});
/** @type {Record<string, any>} null: it could not be loaded */
const loaded = {};
/** @type {Record<string, Promise<void>>} */
const loading = {};

/** Have what a text needs; a library that cannot be loaded leaves the text as it is written. @param {string} text */
export async function prepare(text) {
  await Promise.all(namesFor(text).map(load));
}

/** Whether all that a text needs is there; what is not is being loaded. @param {string} text */
export function isReady(text) {
  const missing = namesFor(text).filter((name) => loaded[name] === undefined);
  missing.forEach(load);
  return !missing.length;
}

/** @param {string} text */
function namesFor(text) {
  return ["marked", /^[ >]*(?:```|~~~)/m.test(text) && "highlight", /\\[([]|\$/.test(text) && "katex"].filter((name) => name !== false);
}

/** @param {string} name */
function load(name) {
  return (loading[name] ??= MODULES[name]().then((library) => void (loaded[name] = library), () => void (loaded[name] = null)));
}

/** The blocks of a text. @param {string} text @returns {MarkdownToken[]} */
export function markdownBlocks(text) {
  return loaded.marked ? loaded.marked.lexer(text) : [{ type: "plain", raw: text, text }];
}

/**
 * Code in pieces: text, or a scope of highlight.js with pieces in it.
 * @typedef {string | {scope: string, children: CodePiece[]}} CodePiece
 * @param {string} code
 * @param {string} language
 * @returns {CodePiece[] | null} null: this language cannot be coloured
 */
export function codePieces(code, language) {
  if (!loaded.highlight?.getLanguage(language)) return null;
  return loaded.highlight.highlight(code, { language, ignoreIllegals: true })._emitter.rootNode.children;
}

/**
 * Write a formula into an element, as MathML.
 * @param {string} formula in TeX
 * @param {HTMLElement} element
 * @param {boolean} isDisplay on lines of its own
 */
export function writeFormula(formula, element, isDisplay) {
  if (loaded.katex) loaded.katex.render(formula, element, { displayMode: isDisplay, output: "mathml", throwOnError: false, strict: "ignore" });
  else element.textContent = formula;
}

const FORMULAS = /** @type {[RegExp, boolean][]} */ ([
  [/^\\\[([^]+?)\\\]/, true],
  [/^\$\$([^]+?)\$\$/, true],
  [/^\\\(([^]+?)\\\)/, false],
  [/^\$(?![\s$])((?:\\.|[^$\\\n])+?)(?<!\s)\$(?![\d$])/, false], // not the dollars of prices
]);

/** Markdown with formulas in TeX. @param {any} marked */
function withMath(marked) {
  const start = (/** @type {string} */ text) => text.match(/\\[([]|\$/)?.index;
  const tokenizer = (/** @type {string} */ text) => {
    for (const [pattern, isDisplay] of FORMULAS) {
      const found = pattern.exec(text);
      if (found) return { type: "formula", raw: found[0], text: found[1].trim(), isDisplay };
    }
  };
  return marked.use({ extensions: [{ name: "formula", level: "inline", start, tokenizer }] });
}
