/** Shows the draft that a token came in: by pointer, by touch, and by arrow keys in a focused answer. */

import { byId, fill, h } from "./dom.js";
import { duration, percent } from "./format.js";
import { pieceText } from "./provenance.js";
import { labelOf, styleOf } from "./speculators.js";
import { markDraft, tintOf, tokenAt } from "./tint.js";
import { words } from "./words.js";

/** @typedef {import("./tint.js").Tint} Tint */

/** @type {{tint: Tint, index: number} | null} */
let current = null;
let isOn = false;

/** @param {boolean} on */
export function switchInspector(on) {
  isOn = on;
  if (!on) hide();
}

/** Listen on a part of the page that holds answers. @param {HTMLElement} root */
export function inspect(root) {
  let frame = 0;
  root.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch" || frame) return;
    frame = requestAnimationFrame(() => {
      frame = 0;
      if (event.buttons || !isOn) return; // selecting text
      const found = tokenAt(event.clientX, event.clientY);
      if (found) show(found.tint, found.index);
      else hide();
    });
  });
  root.addEventListener("click", (event) => {
    const found = isOn && tokenAt(event.clientX, event.clientY);
    if (found) show(found.tint, found.index);
  });
  for (const [kind, act] of /** @type {const} */ ([["pointerover", showSource], ["focusin", showSource], ["pointerout", hideSource], ["focusout", hideSource]])) root.addEventListener(kind, act);
  root.addEventListener("pointerleave", hide);
  root.addEventListener("scroll", hide, { passive: true });
}

/** Mark all that came from the speculator whose name in a legend is pointed at. @param {Event} event */
function showSource({ target }) {
  const swatch = /** @type {Element} */ (target).closest?.(".legend [data-source]");
  const tint = swatch && tintOf(swatch);
  if (isOn && tint) markDraft(tint.rangesFrom(/** @type {HTMLElement} */ (swatch).dataset.source ?? ""));
}

/** @param {Event} event */
function hideSource({ target }) {
  if (/** @type {Element} */ (target).closest?.(".legend")) markDraft([]);
}

/**
 * Arrow keys walk along the tokens of a focused answer.
 * @param {KeyboardEvent} event
 * @param {Tint} tint
 */
export function walk(event, tint) {
  const moves = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 });
  const move = moves[event.key];
  if (event.key === "Escape") hide();
  if (!isOn || !move || event.target !== event.currentTarget || !tint.provenance.starts.length) return;
  event.preventDefault();
  const at = current?.tint === tint ? current.index + move : move > 0 ? 0 : tint.provenance.starts.length - 1;
  show(tint, Math.max(0, Math.min(tint.provenance.starts.length - 1, at)));
}

export function hide() {
  if (!current) return;
  current = null;
  byId("inspector").hidden = true;
  markDraft([]);
}

/**
 * @param {Tint} tint
 * @param {number} index
 */
function show(tint, index) {
  if (current?.tint === tint && current.index === index) return;
  current = { tint, index };
  const { provenance } = tint;
  const { first, emitted } = provenance.draftOf(index);
  const from = provenance.starts[first];
  markDraft(tint.rangesBetween(from, provenance.endOf(first + emitted.length - 1)));
  const panel = byId("inspector");
  fill(panel, describe(tint, index));
  panel.hidden = false;
  place(panel, tint.rangesOf(index)[0] ?? tint.rangesBetween(from, from + 1)[0]);
}

/**
 * @param {Tint} tint
 * @param {number} index
 */
function describe({ provenance }, index) {
  const token = provenance.data.tokens[index];
  const { step, emitted } = provenance.draftOf(index);
  const chance = token.chance === null ? "" : words.expected(percent(token.chance));
  const head = token.source
    ? h("p", {}, shownPiece(token.piece, token.source), words.draftedBy(labelOf(token.source), (token.position ?? 0) + 1), chance, ".")
    : h("p", {}, shownPiece(token.piece, ""), step?.draft.length ? words.endedDraft : words.noDraft);
  if (!step) return head;
  const numAccepted = emitted.filter((one) => one.source).length;
  const draft = step.draft.map((one, i) =>
    h(
      "li",
      { class: i < numAccepted ? "accepted" : "rejected" },
      shownPiece(one.piece, one.source),
      h("span", { class: "chance" }, one.chance === null ? "" : percent(one.chance)),
      h("span", { class: "only-spoken" }, i < numAccepted ? words.accepted : words.rejected),
    ),
  );
  const drafting = step.draft_ms >= 0.05 ? duration(step.draft_ms / 1000) : "";
  return [
    head,
    draft.length ? h("ol", { class: "draft", "aria-label": words.draft }, draft) : null,
    h("p", { class: "hint" }, words.rows(step.rows, step.rows_wasted), words.stepTimes(duration(step.target_ms / 1000), drafting)),
  ];
}

/**
 * @param {string | number[]} piece
 * @param {string} source
 */
function shownPiece(piece, source) {
  const text = pieceText(piece).replaceAll("\n", "↵").replaceAll("\t", "→").replaceAll(" ", "\u00a0");
  return h("span", { class: `piece ${source ? `draft-${styleOf(source)}` : "own"}` }, text || words.end);
}

/**
 * Below the token, or above where there is no room.
 * @param {HTMLElement} panel
 * @param {StaticRange | undefined} range
 */
function place(panel, range) {
  if (!range) return;
  const live = document.createRange();
  live.setStart(range.startContainer, range.startOffset);
  live.setEnd(range.endContainer, range.endOffset);
  const box = live.getBoundingClientRect();
  const { width, height } = panel.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - width - 8));
  const below = box.bottom + 8;
  panel.style.left = `${left}px`;
  panel.style.top = `${below + height > innerHeight - 8 ? Math.max(8, box.top - height - 8) : below}px`;
}
