/** Who guessed each token of an answer, and what that saved. Pure. */

/**
 * @typedef {object} Token one token of the answer
 * @property {number} id
 * @property {string | number[]} piece its text, or its bytes where they are no whole characters
 * @property {string} source the speculator that guessed it; "" for the model's own
 * @property {number | null} position in its draft, from 0
 * @property {number | null} chance that it would be accepted, as control saw it
 * @property {number} step that emitted it
 */

/**
 * @typedef {object} DraftToken
 * @property {number} id
 * @property {string | number[]} piece
 * @property {string} source
 * @property {number | null} chance
 */

/**
 * @typedef {object} Step one decode of the model
 * @property {number} rows verified for this answer, its newest token included
 * @property {number} rows_wasted of them, rejected drafts
 * @property {number} target_ms
 * @property {number} draft_ms
 * @property {DraftToken[]} draft
 */

/** @typedef {{tokens: Token[], steps: Step[]}} ProvenanceData as the server sends it */

/**
 * @typedef {object} Totals
 * @property {number} tokens
 * @property {number} steps
 * @property {number} drafted
 * @property {number} guessed tokens that came from drafts
 * @property {number} perStep tokens a step
 * @property {number} saved steps that were not needed
 * @property {number} targetMs
 * @property {number} draftMs
 * @property {Map<string, number>} bySource
 * @property {number | null} speedup against one token a step; null while not known
 */

/** Steps without a draft that an answer needs until they say what a plain step costs. */
const ENOUGH_PLAIN_STEPS = 5;

/** All that is known of the tokens of one answer. */
export class Provenance {
  /** @param {ProvenanceData} [data] */
  constructor(data) {
    /** @type {ProvenanceData} */
    this.data = { tokens: [], steps: [] };
    this.text = ""; // of all tokens
    /** @type {number[]} where each token begins in `text` */
    this.starts = [];
    this.decoder = new TextDecoder();
    this.isInside = false; // a character, perhaps
    if (data) this.add(data);
  }

  /** @param {ProvenanceData} part what one chunk brought */
  add(part) {
    for (const token of part.tokens) {
      this.starts.push(this.text.length);
      this.text += this.decode(token.piece);
      this.data.tokens.push(token);
    }
    this.data.steps.push(...part.steps);
  }

  /** @param {string | number[]} piece */
  decode(piece) {
    if (typeof piece !== "string") {
      this.isInside = true;
      return this.decoder.decode(new Uint8Array(piece), { stream: true });
    }
    const rest = this.isInside ? this.decoder.decode() : ""; // what never became a character
    this.isInside = false;
    return rest + piece;
  }

  /** Index of the token at an offset of `text`. @param {number} offset */
  indexAt(offset) {
    let low = 0;
    let high = this.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** End of a token in `text`. @param {number} index */
  endOf(index) {
    return index + 1 < this.starts.length ? this.starts[index + 1] : this.text.length;
  }

  /**
   * Stretches of `text` with one source each.
   * @param {number} from
   * @param {number} to
   * @returns {{from: number, to: number, source: string}[]}
   */
  runs(from, to) {
    /** @type {{from: number, to: number, source: string}[]} */
    const runs = [];
    for (let index = this.indexAt(from); from < to && index < this.starts.length; index++) {
      const { source } = this.data.tokens[index];
      const end = Math.min(to, this.endOf(index));
      if (end <= from) continue;
      const last = runs.at(-1);
      if (last && last.source === source) last.to = end;
      else runs.push({ from, to: end, source });
      from = end;
    }
    return runs;
  }

  /**
   * Tokens of the draft that a token's step verified, and the tokens which that step emitted.
   * @param {number} index of a token
   */
  draftOf(index) {
    const { step } = this.data.tokens[index];
    const emitted = [];
    let first = index;
    while (first > 0 && this.data.tokens[first - 1].step === step) first--;
    for (let i = first; i < this.data.tokens.length && this.data.tokens[i].step === step; i++)
      emitted.push(this.data.tokens[i]);
    return { step: this.data.steps[step], first, emitted };
  }

  /**
   * @param {number | null} [plainStepMs] what a step without a draft costs, if that is known elsewhere
   * @returns {Totals}
   */
  totals(plainStepMs = null) {
    const { tokens, steps } = this.data;
    const bySource = new Map();
    for (const { source } of tokens) bySource.set(source, (bySource.get(source) ?? 0) + 1);
    const drafted = sum(steps.map((step) => step.draft.length));
    const targetMs = sum(steps.map((step) => step.target_ms));
    const draftMs = sum(steps.map((step) => step.draft_ms));
    const later = steps.slice(1); // the first one reads the prompt
    const plain = later.filter((step) => !step.draft.length).map((step) => step.target_ms);
    const plainMs = plain.length >= ENOUGH_PLAIN_STEPS ? sum(plain) / plain.length : plainStepMs;
    const spent = sum(later.map((step) => step.target_ms + step.draft_ms));
    const numLater = tokens.length - tokens.filter((token) => token.step === 0).length;
    return {
      tokens: tokens.length,
      steps: steps.length,
      drafted,
      guessed: tokens.length - (bySource.get("") ?? 0),
      perStep: steps.length ? tokens.length / steps.length : 0,
      saved: tokens.length - steps.length,
      targetMs,
      draftMs,
      bySource,
      speedup: plainMs !== null && spent > 0 ? (numLater * plainMs) / spent : null,
    };
  }
}

/** A token's text for people. @param {string | number[]} piece */
export function pieceText(piece) {
  if (typeof piece !== "string") return piece.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
  return piece;
}

/** @param {number[]} values */
function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}
