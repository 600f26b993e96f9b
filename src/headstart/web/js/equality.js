/** Whether two answers are the same, token by token. Pure. */

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
 * @param {boolean} isDeterministic the server runs with --deterministic
 */
export function verdict({ same, first, second, isEqual }, isDeterministic) {
  if (isEqual) return `Same text: all ${first} tokens are equal.`;
  const where = `The first ${same} tokens are equal, then the texts part (${first} and ${second} tokens).`;
  return isDeterministic
    ? `${where} In deterministic mode that must not happen; please report it.`
    : `${where} That is no effect of guessing: the model's numbers depend a little on how many tokens are computed together, so where two tokens are almost equally likely either can win. With --deterministic the texts are the same bit by bit.`;
}
