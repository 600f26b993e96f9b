/** Who drafted each token of an answer, and what that saved. Pure. */

/**
 * @typedef {object} Token one token of the answer
 * @property {number} id
 * @property {string | number[]} piece its text, or its bytes where they are no whole characters
 * @property {string} source the speculator that drafted it; "" for the model's own
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
 * @property {number} drafted
 * @property {number} accepted tokens that came from drafts
 * @property {number} perStep tokens a step
 * @property {number} saved steps that were not needed
 * @property {Map<string, number>} bySource
 * @property {number | null} plainMs what a step without a draft costs
 * @property {number | null} speedup against one token a step; null while not known
 */

/** Steps without a draft that an answer needs until they say what a plain step costs. */
const ENOUGH_PLAIN_STEPS = 5;

/** All that is known of the tokens of one answer. */
export class Provenance {
  /** @type {ProvenanceData} */
  data = { tokens: [], steps: [] };
  text = ""; // of all tokens
  /** @type {number[]} where each token begins in `text` */
  starts = [];
  decoder = new TextDecoder();
  isInside = false; // a character, perhaps

  /** @param {ProvenanceData} [data] */
  constructor(data) {
    if (data) this.add(data);
  }

  clear() {
    Object.assign(this, new Provenance());
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
   * Stretches of `text` that are to be marked: what was drafted, without the white space around it.
   * @param {number} from
   * @param {number} to
   * @returns {{from: number, to: number, source: string}[]}
   */
  marks(from, to) {
    /** @type {{from: number, to: number, source: string}[]} */
    const marks = [];
    for (const run of this.runs(from, to)) {
      if (!run.source) continue;
      let isOpen = false;
      for (let at = run.from; at < run.to; at++) {
        const isMarked = !isSpace(this.text[at]) || this.isBetweenWords(at, run.source);
        if (isMarked && isOpen) marks[marks.length - 1].to = at + 1;
        else if (isMarked) marks.push({ from: at, to: at + 1, source: run.source });
        isOpen = isMarked;
      }
    }
    return marks;
  }

  /** Whether there is a single space between two words of one speculator. @param {number} at @param {string} source */
  isBetweenWords(at, source) {
    if (this.text[at] !== " " || isSpace(this.text[at - 1]) || isSpace(this.text[at + 1])) return false;
    return [at - 1, at + 1].every((beside) => this.data.tokens[this.indexAt(beside)].source === source);
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
   * @param {number | null} [baselineMs] what a step without a draft costs, if that is known elsewhere; 0: no speedup is wanted
   * @returns {Totals}
   */
  totals(baselineMs = null) {
    const { tokens, steps } = this.data;
    const bySource = new Map();
    for (const { source } of tokens) bySource.set(source, (bySource.get(source) ?? 0) + 1);
    const later = steps.slice(1); // the first one processes the prompt
    const plain = later.filter((step) => !step.draft.length).map((step) => step.target_ms);
    const spent = sum(later.map((step) => step.target_ms + step.draft_ms));
    const known = baselineMs !== 0 && plain.length >= ENOUGH_PLAIN_STEPS ? sum(plain) / plain.length : baselineMs;
    const plainMs = known && later.length ? Math.min(known, spent / later.length) : null; // no draft makes a step cheaper
    const numLater = tokens.length - tokens.filter((token) => token.step === 0).length;
    return {
      tokens: tokens.length,
      drafted: sum(steps.map((step) => step.draft.length)),
      accepted: tokens.length - (bySource.get("") ?? 0),
      perStep: steps.length ? tokens.length / steps.length : 0,
      saved: tokens.length - steps.length,
      bySource,
      plainMs,
      speedup: plainMs && spent > 0 ? (numLater * plainMs) / spent : null,
    };
  }
}

/** A token's text for people. @param {string | number[]} piece */
export function pieceText(piece) {
  if (typeof piece !== "string") return piece.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
  return piece;
}

/** @param {string | undefined} character */
function isSpace(character) {
  return character === undefined || /\s/.test(character);
}

/** @param {number[]} values */
function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}
