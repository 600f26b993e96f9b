/** What the board remembers of the last minutes. Pure. */

/**
 * @typedef {object} State what GET /events sends
 * @property {number} time seconds since 1970
 * @property {number} uptime_seconds
 * @property {number} num_processing
 * @property {number} num_waiting
 * @property {number} tokens since the start, running answers included
 * @property {number} tokens_per_second
 * @property {number} num_decodes
 * @property {number} num_slot_steps summed over decodes: the slots in each
 * @property {number} num_drafts
 * @property {number} num_draft_tokens
 * @property {number} num_accepted_draft_tokens
 * @property {{target: number, drafts: number, other: number}} seconds
 * @property {{server: number, engine: number}} memory_bytes
 * @property {any[]} slots as /slots has them
 * @property {{speculators: any[], reasons_not_drafted: Record<string, number>, control: any}} speculation
 */

const SECONDS = 180;

export class History {
  constructor() {
    /** @type {State[]} */
    this.states = [];
  }

  /** @param {State} state */
  add(state) {
    const last = this.states.at(-1);
    if (last && state.tokens < last.tokens) this.states = []; // the engine was started again
    this.states.push(state);
    while (this.states[0].time < state.time - SECONDS) this.states.shift();
  }

  /** Columns of the chart: time, tokens a second, share of guesses accepted in percent. */
  columns() {
    const times = [];
    const speeds = [];
    const rates = [];
    for (const [i, state] of this.states.entries()) {
      times.push(state.time);
      speeds.push(state.tokens_per_second);
      const before = this.states[Math.max(0, i - 8)];
      const drafted = state.num_draft_tokens - before.num_draft_tokens;
      rates.push(drafted > 0 ? (100 * (state.num_accepted_draft_tokens - before.num_accepted_draft_tokens)) / drafted : null);
    }
    return [times, speeds, rates];
  }

  /**
   * Tokens a second of one slot's request, over the last second or so.
   * @param {any} slot
   */
  speedOf(slot) {
    const now = this.states.at(-1);
    const before = this.states.findLast((state) => now && state.time <= now.time - 1) ?? this.states[0];
    const old = before?.slots.find((one) => one.id === slot.id && one.id_task === slot.id_task);
    if (!old || !now || now === before) return 0;
    return (slot.next_token[0].n_decoded - old.next_token[0].n_decoded) / (now.time - before.time);
  }
}

/**
 * How many drafts had each length, from how many had a token at each position.
 * @param {number[]} byPosition
 * @returns {number[]} [length - 1] = drafts
 */
export function draftLengths(byPosition) {
  return byPosition.map((count, i) => count - (byPosition[i + 1] ?? 0));
}
