/** What a step without a draft costs here and now, from the answers of this session. Pure. */

const ENOUGH = 5;
const MOST = 100; // older ones were taken under another load

export class PlainSteps {
  constructor() {
    /** @type {number[]} milliseconds */
    this.latest = [];
  }

  /** @param {import("./provenance.js").ProvenanceData} data of an answer that is over */
  add({ steps }) {
    const plain = steps.slice(1).filter((step) => !step.draft.length); // the first reads the prompt
    this.latest = [...this.latest, ...plain.map((step) => step.target_ms)].slice(-MOST);
  }

  /** Null while there are too few. */
  get mean() {
    if (this.latest.length < ENOUGH) return null;
    return this.latest.reduce((total, value) => total + value, 0) / this.latest.length;
  }
}
