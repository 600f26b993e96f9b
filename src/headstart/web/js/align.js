/** Finds shown text in the text that the model wrote, which has Markdown's marks between. Pure. */

/** Characters of marks that may stand between two shown texts: a link's address, for instance. */
const LONGEST_MARK = 400;
/** The same between two characters of one text: an escape, an entity. */
const LONGEST_ESCAPE = 8;

/**
 * @typedef {object} Stretch characters that are the same in both texts
 * @property {number} start in the shown text
 * @property {number} end
 * @property {number} offset in the written text
 */

/**
 * Find one shown text behind a cursor of the written one.
 * @param {string} shown
 * @param {string} written
 * @param {number} cursor
 * @returns {{stretches: Stretch[], cursor: number}}
 */
export function align(shown, written, cursor) {
  // Markdown puts white space between its elements; only what stands right here is the model's
  if (!shown.trim() && !written.startsWith(shown, cursor)) return { stretches: [], cursor };
  const found = written.startsWith(shown, cursor)
    ? cursor
    : written.slice(cursor, cursor + LONGEST_MARK + shown.length).indexOf(shown) + cursor;
  if (found >= cursor)
    return { stretches: [{ start: 0, end: shown.length, offset: found }], cursor: found + shown.length };
  return alignCharacters(shown, written, cursor);
}

/**
 * @param {string} shown
 * @param {string} written
 * @param {number} cursor
 */
function alignCharacters(shown, written, cursor) {
  /** @type {Stretch[]} */
  const stretches = [];
  let window = LONGEST_MARK; // the first character may stand behind a long mark
  for (let at = 0; at < shown.length; at++) {
    const found = written.slice(cursor, cursor + window).indexOf(shown[at]);
    if (found < 0) continue;
    const last = stretches.at(-1);
    if (last && last.end === at && found === 0) last.end = at + 1;
    else stretches.push({ start: at, end: at + 1, offset: cursor + found });
    cursor += found + 1;
    window = LONGEST_ESCAPE;
  }
  return { stretches, cursor };
}
