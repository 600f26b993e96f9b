/** What the server's short reasons mean, in sentences. Pure. */

const REASONS = /** @type {Record<string, string>} */ ({
  "below break-even": "a guess would have cost more time than it was expected to save",
  "no match": "nothing earlier in the text, or in texts before, looked like this place",
  "outbid": "another speculator's draft was expected to be accepted further",
  "off": "the server was started with guessing off",
  "disabled by request": "the request switched it off",
  "no speculator is loaded": "the server was started without speculators",
  "context full": "the cache had no room for drafts",
  "batch full": "the batch had no room for drafts",
  "max_tokens reached": "the answer was to end with the next token anyway",
  "memory takes nothing back": "this model's memory cannot take back a rejected draft",
  "no memory for the state before a draft": "the state before the draft did not fit into memory",
  "shorter than n_min": "the draft was shorter than the least length that was set",
  "shorter than n-min": "the draft was shorter than the least length that was set",
  "draft context full": "the text is longer than the draft model's context",
  "draft model is reading the prompt": "the draft model had not read the text yet",
  "draft model is unsure": "the draft model itself thought its first guess unlikely",
  "no continuation dominates": "what followed this place before was different each time",
  "history too short": "the text is too short to repeat anything",
  "failed": "it was switched off after an error; the log has it",
});

/** @param {string} reason */
export function reasonInWords(reason) {
  return REASONS[reason] ?? reason;
}

/**
 * Why there was no guess, most frequent first.
 * @param {Record<string, number>} reasons
 * @returns {{reason: string, words: string, steps: number, share: number}[]}
 */
export function rankedReasons(reasons) {
  const total = Object.values(reasons).reduce((sum, steps) => sum + steps, 0);
  return Object.entries(reasons)
    .sort(([, one], [, other]) => other - one)
    .map(([reason, steps]) => ({ reason, words: reasonInWords(reason), steps, share: steps / total }));
}

/** @param {number} share */
export function shareInWords(share) {
  return share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(100 * share)} %`;
}

/** @param {number} bytes */
export function sizeInWords(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
  return `${bytes < 10 && unit ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}

/** @param {number} seconds */
export function durationInWords(seconds) {
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
