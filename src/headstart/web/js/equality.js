/** Whether two answers are the same, token by token. Pure. */

import { words } from "./words.js";

/** @typedef {import("./provenance.js").Token} Token */

/**
 * @typedef {object} Comparison
 * @property {number} same tokens at the beginning that are equal
 * @property {number} first tokens of the first answer
 * @property {number} second
 * @property {boolean} isEqual
 */

/**
 * @param {Token[]} first
 * @param {Token[]} second
 * @returns {Comparison}
 */
export function compareTokens(first, second) {
  let same = 0;
  while (same < first.length && same < second.length && first[same].id === second[same].id) same++;
  return { same, first: first.length, second: second.length, isEqual: same === first.length && same === second.length };
}

/**
 * The verdict in words.
 * @param {Comparison} comparison
 * @param {boolean} isExact the server runs with --exact
 */
export function verdict({ same, first, second, isEqual }, isExact) {
  if (isEqual) return words.same(first);
  return `${words.part(same, first, second)} ${isExact ? words.mustNot : words.nearTie}`;
}
