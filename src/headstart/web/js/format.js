/** Numbers, sizes and times as people read them, and reasons in sentences. Pure. */

import { language, words } from "./words.js";

/** @type {Intl.NumberFormat[]} by digits: making one takes longer than a hundred uses */
const formats = [];

/**
 * @param {number} value
 * @param {number} [digits] after the point
 */
export function number(value, digits = 0) {
  formats[digits] ??= new Intl.NumberFormat(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return formats[digits].format(value);
}

/** A speed or a factor: two digits that count. @param {number} value */
export function rate(value) {
  return number(value, value && value < 10 ? 1 : 0);
}

/** @param {number} share */
export function percent(share) {
  return share > 0 && share < 0.01 ? "< 1 %" : `${number(100 * share)} %`;
}

/** @param {number} bytes */
export function size(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
  return `${number(bytes, bytes < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1) return `${number(1000 * seconds, seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 90) return `${number(seconds, seconds < 10 ? 1 : 0)} s`;
  if (seconds < 5400) return `${number(seconds / 60)} min`;
  return `${number(seconds / 3600, 1)} h`;
}

/** @param {string} reason */
export function reasonInWords(reason) {
  return words.reasons[reason] ?? reason;
}

/**
 * Why there was no draft, most frequent first.
 * @param {Record<string, number>} reasons
 * @returns {{reason: string, words: string, steps: number, share: number}[]}
 */
export function rankedReasons(reasons) {
  const total = Object.values(reasons).reduce((sum, steps) => sum + steps, 0);
  return Object.entries(reasons)
    .sort(([, one], [, other]) => other - one)
    .map(([reason, steps]) => ({ reason, words: reasonInWords(reason), steps, share: steps / total }));
}
