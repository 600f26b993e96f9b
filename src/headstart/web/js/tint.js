/**
 * Colours the tokens of an answer by who drafted them, without touching its elements: the browser
 * paints highlights over ranges of text (CSS Custom Highlight API).
 */

import { align } from "./align.js";
import { NUM_STYLES, styleOf } from "./speculators.js";

/** @typedef {import("./provenance.js").Provenance} Provenance */

/** Whether this browser can do it. */
export const canTint = typeof Highlight !== "undefined" && "highlights" in CSS;

/** @type {Map<string, Highlight>} */
const highlights = new Map();
if (canTint) {
  for (let style = 0; style < NUM_STYLES; style++) highlights.set(`draft-${style}`, new Highlight());
  const now = new Highlight();
  now.priority = 1;
  highlights.set("draft-now", now);
}

/** @type {WeakMap<Node, {tint: Tint, stretches: import("./align.js").Stretch[]}>} */
const places = new WeakMap();

/** Switch all tints on or off. @param {boolean} isOn */
export function showTints(isOn) {
  for (const [name, highlight] of highlights) {
    if (isOn) CSS.highlights.set(name, highlight);
    else CSS.highlights.delete(name);
  }
}

/**
 * The token under a point of the window.
 * @param {number} x
 * @param {number} y
 * @returns {{tint: Tint, index: number} | null}
 */
export function tokenAt(x, y) {
  const position = document.caretPositionFromPoint?.(x, y);
  const range = position ? null : document.caretRangeFromPoint?.(x, y);
  const node = position?.offsetNode ?? range?.startContainer;
  const at = position?.offset ?? range?.startOffset ?? 0;
  const place = node && places.get(node);
  if (!node || !place) return null;
  // the point may lie beside the text, where the nearest caret is far away
  const box = document.createRange();
  box.selectNodeContents(node);
  if (![...box.getClientRects()].some((r) => x >= r.left && x <= r.right && y >= r.top && y <= r.bottom)) return null;
  const stretch = place.stretches.find((one) => at >= one.start && at <= one.end);
  if (!stretch) return null;
  const offset = stretch.offset + Math.min(at - stretch.start, stretch.end - stretch.start - 1);
  return { tint: place.tint, index: place.tint.provenance.indexAt(offset) };
}

/** The tint of the answer that an element describes. @param {Element} element @returns {Tint | null} */
export function tintOf(element) {
  const body = element.closest(".message, .side")?.querySelector(".body");
  for (const node of body ? textNodes(body) : []) {
    const place = places.get(node);
    if (place) return place.tint;
  }
  return null;
}

/** The tints of one answer. */
export class Tint {
  /**
   * @param {Provenance} provenance
   * @param {HTMLElement} root all of the answer
   */
  constructor(provenance, root) {
    this.provenance = provenance;
    this.root = root;
    this.cursor = 0; // in the written text, behind what is settled
    this.numSettled = 0;
    /** @type {[Highlight, StaticRange][]} */
    this.settled = [];
    /** @type {[Highlight, StaticRange][]} */
    this.loose = [];
  }

  /**
   * Tint what is new.
   * @param {Element[]} blocks of the answer, in order
   * @param {number} numSettled blocks that will not change any more
   */
  update(blocks, numSettled) {
    if (!canTint || !this.provenance.starts.length) return;
    drop(this.loose);
    this.loose = [];
    for (; this.numSettled < numSettled; this.numSettled++)
      this.cursor = this.tint(blocks[this.numSettled], this.cursor, this.settled);
    let cursor = this.cursor;
    for (const block of blocks.slice(numSettled)) cursor = this.tint(block, cursor, this.loose);
  }

  /** Start over, because the elements are new. */
  reset() {
    this.remove();
    this.cursor = this.numSettled = 0;
  }

  remove() {
    drop(this.settled);
    drop(this.loose);
    this.settled = [];
    this.loose = [];
  }

  /**
   * Where a token is shown.
   * @param {number} index
   * @returns {StaticRange[]}
   */
  rangesOf(index) {
    return this.rangesBetween(this.provenance.starts[index], this.provenance.endOf(index));
  }

  /** Everything that one speculator drafted. @param {string} source */
  rangesFrom(source) {
    const { provenance } = this;
    return provenance.runs(0, provenance.text.length).flatMap((run) => (run.source === source ? this.rangesBetween(run.from, run.to) : []));
  }

  /**
   * @param {number} from offset in the written text
   * @param {number} to
   */
  rangesBetween(from, to) {
    const ranges = [];
    for (const node of textNodes(this.root)) {
      for (const one of places.get(node)?.stretches ?? []) {
        const start = Math.max(from, one.offset);
        const end = Math.min(to, one.offset + one.end - one.start);
        if (start < end) ranges.push(rangeOf(node, start - one.offset + one.start, end - one.offset + one.start));
      }
    }
    return ranges;
  }

  /**
   * @param {Element} block
   * @param {number} cursor
   * @param {[Highlight, StaticRange][]} ranges takes what is made
   * @returns {number} the cursor behind it
   */
  tint(block, cursor, ranges) {
    for (const node of textNodes(block)) {
      const found = align(node.data, this.provenance.text, cursor);
      cursor = found.cursor;
      places.set(node, { tint: this, stretches: found.stretches });
      for (const stretch of found.stretches) {
        const length = stretch.end - stretch.start;
        const shift = stretch.start - stretch.offset;
        for (const { from, to, source } of this.provenance.marks(stretch.offset, stretch.offset + length)) {
          const highlight = /** @type {Highlight} */ (highlights.get(`draft-${styleOf(source)}`));
          const range = rangeOf(node, from + shift, to + shift);
          highlight.add(range);
          ranges.push([highlight, range]);
        }
      }
    }
    return cursor;
  }
}

/** Mark the tokens that are being looked at. @param {StaticRange[]} ranges */
export function markDraft(ranges) {
  const highlight = highlights.get("draft-now");
  highlight?.clear();
  for (const range of ranges) highlight?.add(range);
}

/**
 * @param {Text} node
 * @param {number} start
 * @param {number} end
 */
function rangeOf(node, start, end) {
  return new StaticRange({ startContainer: node, startOffset: start, endContainer: node, endOffset: end });
}

/** @param {[Highlight, StaticRange][]} ranges */
function drop(ranges) {
  for (const [highlight, range] of ranges) highlight.delete(range);
}

/** Text that the model wrote; not that of buttons and captions. @param {Element} root */
function* textNodes(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, (node) =>
    node instanceof Element
      ? node.matches("[data-not-model-text]")
        ? NodeFilter.FILTER_REJECT
        : NodeFilter.FILTER_SKIP
      : NodeFilter.FILTER_ACCEPT,
  );
  while (walker.nextNode()) yield /** @type {Text} */ (walker.currentNode);
}
