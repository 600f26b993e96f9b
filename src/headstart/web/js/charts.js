/** Charts of the board: bars are elements, what runs over time is drawn by uPlot. */

import { fill, h } from "./dom.js";
import { timeChart } from "./libraries.js";

const SHOWN_SECONDS = 120;

const MOST_UPRIGHT = 20; // bars whose numbers have room beside each other

/**
 * Upright bars with a label below and the value on top.
 * @param {HTMLElement} root
 * @param {{label: string, value: number, text: string, style?: string}[]} bars
 * @param {string} summary what a screen reader says
 */
export function showBars(root, bars, summary) {
  const most = Math.max(...bars.map((bar) => bar.value), 1e-9);
  const list = h(
    "ul",
    { class: bars.length > MOST_UPRIGHT ? "bars many" : "bars", "aria-label": summary },
    bars.map((bar) => {
      const fillElement = h("span", { class: `bar ${bar.style ?? ""}` });
      fillElement.style.height = `${Math.max(2, (100 * bar.value) / most)}%`;
      return h(
        "li",
        {},
        h("span", { class: "value" }, bar.text),
        h("span", { class: "column" }, fillElement),
        h("span", { class: "label" }, bar.label),
      );
    }),
  );
  fill(root, bars.length ? list : h("p", { class: "hint" }, "Nothing yet."));
}

/**
 * Shares of a whole, side by side.
 * @param {HTMLElement} root
 * @param {{label: string, value: number, text: string, style: string}[]} parts
 */
export function showShares(root, parts) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  if (!total) {
    fill(root, h("p", { class: "hint" }, "Nothing yet."));
    return;
  }
  const strip = h("div", { class: "shares", "aria-hidden": "true" });
  for (const part of parts) {
    const piece = h("span", { class: part.style });
    piece.style.flexGrow = String(part.value / total);
    strip.append(piece);
  }
  fill(
    root,
    strip,
    h(
      "ul",
      { class: "share-list" },
      parts.map((part) => h("li", {}, h("span", { class: `dot ${part.style}` }), `${part.label} `, h("strong", {}, `${((100 * part.value) / total).toFixed(1)} %`), ` ${part.text}`)),
    ),
  );
}

/** @param {number} seconds since 1970 */
function clockTime(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString([], { hour12: false });
}

/** Tokens a second and acceptance over the last minutes. */
export class ThroughputChart {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.chart = null;
    new ResizeObserver(() => this.chart?.setSize(this.size())).observe(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.forget());
    new MutationObserver(() => this.forget()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  size() {
    return { width: Math.max(200, this.root.clientWidth), height: 180 };
  }

  /** Colours are read once, so another theme needs another chart. */
  forget() {
    this.chart?.destroy();
    this.chart = null;
  }

  /** @param {any[][]} columns */
  show(columns) {
    if (this.chart) this.chart.setData(columns);
    else if (this.root.clientWidth) this.chart = timeChart(this.options(), columns, this.root);
  }

  options() {
    const style = getComputedStyle(document.documentElement);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    return {
      ...this.size(),
      cursor: { drag: { x: false, y: false } },
      legend: { show: false },
      scales: { x: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ last) => [last - SHOWN_SECONDS, last] }, y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, Math.max(1, most * 1.1)] }, rate: { range: [0, 100] } },
      axes: [
        { ...axis, space: 90, size: 28, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(clockTime) },
        { ...axis, size: 44 },
        { ...axis, scale: "rate", side: 1, size: 40, grid: { show: false }, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => `${tick} %`) },
      ],
      series: [
        {},
        { label: "tokens/s", stroke: colour("--accent"), width: 2, fill: colour("--accent-soft"), points: { show: false } },
        { label: "accepted", scale: "rate", stroke: colour("--guess-1"), width: 1.5, dash: [4, 3], points: { show: false } },
      ],
    };
  }
}
