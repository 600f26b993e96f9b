/** Charts of the board, as elements: bars, shares, and a line over the last minutes. */

import { h, update } from "./dom.js";
import { number, percent, rate } from "./format.js";
import { words } from "./words.js";

/**
 * Upright bars with a label below and the value on top; lying ones where there is little room.
 * @param {HTMLElement} root
 * @param {{label: string, value: number, text: string, style?: string}[]} bars
 * @param {string} summary what a screen reader says
 */
export function showBars(root, bars, summary) {
  const most = Math.max(...bars.map((bar) => bar.value), 1e-9);
  const items = bars.map((bar) => {
    const column = h("span", { class: `bar ${bar.style ?? ""}` });
    column.style.setProperty("--share", `${Math.max(1, (100 * bar.value) / most).toFixed(1)}%`);
    return h("li", {}, h("span", { class: "value" }, bar.text), h("span", { class: "column" }, column), h("span", { class: "label" }, bar.label));
  });
  update(root, items.length ? h("ul", { class: "bars", tabindex: "0", "aria-label": summary }, items) : nothing());
}

/**
 * Shares of a whole, side by side.
 * @param {HTMLElement} root
 * @param {{label: string, value: number, text: string, style: string}[]} parts
 */
export function showShares(root, parts) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  if (!total) {
    update(root, nothing());
    return;
  }
  const strip = h("div", { class: "shares", "aria-hidden": "true" });
  for (const part of parts) {
    const piece = h("span", { class: part.style });
    piece.style.flexGrow = String(part.value / total);
    strip.append(piece);
  }
  const row = (/** @type {typeof parts[0]} */ part) =>
    h("tr", {}, h("th", { scope: "row" }, h("span", { class: `dot ${part.style}` }), part.label), h("td", {}, percent(part.value / total)), h("td", {}, part.text));
  update(root, strip, h("table", { class: "share-list" }, h("tbody", {}, parts.map(row))));
}

function nothing() {
  return h("p", { class: "hint" }, words.nothingYet);
}

const WIDTH = 600; // of the drawing, which is stretched to the card
const HEIGHT = 100;
const SHOWN_SECONDS = 180;

/**
 * Tokens per second and acceptance over the last minutes.
 * @param {HTMLElement} root
 * @param {{time: number, speed: number, accepted: number | null}[]} points
 */
export function showTimeline(root, points) {
  const now = points.at(-1)?.time ?? 0;
  const most = niceMost(Math.max(...points.map((point) => point.speed), 1));
  const x = (/** @type {number} */ time) => (WIDTH * (1 - (now - time) / SHOWN_SECONDS)).toFixed(1);
  const y = (/** @type {number} */ share) => (HEIGHT * (1 - share)).toFixed(1);
  const shown = points.filter((point) => point.time > now - SHOWN_SECONDS);
  const speed = shown.map((point) => `${x(point.time)},${y(point.speed / most)}`).join("L");
  let accepted = "";
  for (const [i, point] of shown.entries())
    if (point.accepted !== null) accepted += `${shown[i - 1]?.accepted == null ? "M" : "L"}${x(point.time)},${y(point.accepted)}`;
  const [first] = shown;
  const shapes = first ? [path("area", `M${x(first.time)},${HEIGHT}L${speed}L${WIDTH},${HEIGHT}Z`), path("speed", `M${speed}`), path("accepted", accepted)] : [];
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": words.chartSummary(rate(points.at(-1)?.speed ?? 0)) });
  drawing.append(...[0, 0.5, 1].map((share) => path("grid", `M0,${y(share)}H${WIDTH}`)), ...shapes);
  const axis = (/** @type {string} */ name, /** @type {string[]} */ labels) => h("div", { class: `axis ${name}`, "aria-hidden": "true" }, labels.map((label) => h("span", {}, label)));
  update(
    root,
    axis("left", [most, most / 2, 0].map((value) => number(value, most < 4 && value % 1 ? 1 : 0))),
    drawing,
    axis("right", ["100 %", "50 %", "0 %"]),
    axis("below", [words.before(number(SHOWN_SECONDS / 60)), words.before(number(SHOWN_SECONDS / 120, 1)), words.now]),
  );
}

/** The top of an axis: 1, 2, 5 or 10 times a power of ten. @param {number} value */
function niceMost(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5, 10].find((factor) => factor * power >= value) ?? 10);
}

/**
 * @param {string} kind
 * @param {string} d
 */
function path(kind, d) {
  return svg("path", { class: kind, d, "vector-effect": "non-scaling-stroke" });
}

/**
 * @param {string} name
 * @param {Record<string, string>} attributes
 */
function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
