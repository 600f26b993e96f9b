/** Provenance as text, in parts small enough that none of them holds up the page. Pure. */

/** @typedef {import("./provenance.js").ProvenanceData} ProvenanceData */

const PART = 1000; // tokens or steps: two milliseconds

/**
 * @param {ProvenanceData} provenance
 * @param {() => Promise<void>} pause between two parts
 * @returns {Promise<string[]>}
 */
export async function packProvenance({ tokens, steps }, pause) {
  const parts = [];
  for (let at = 0; at === 0 || at < Math.max(tokens.length, steps.length); at += PART) {
    if (at) await pause();
    parts.push(JSON.stringify({ tokens: tokens.slice(at, at + PART), steps: steps.slice(at, at + PART) }));
  }
  return parts;
}

/** @param {string | string[]} packed all in one, or in parts @returns {ProvenanceData} */
export function unpackProvenance(packed) {
  const parts = typeof packed === "string" ? [packed] : packed;
  /** @type {ProvenanceData} */
  const whole = { tokens: [], steps: [] };
  for (const part of parts) {
    const { tokens, steps } = JSON.parse(part);
    whole.tokens.push(...tokens);
    whole.steps.push(...steps);
  }
  return whole;
}
