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
 * @property {{num_prompts: number, num_bytes: number, num_restored: number}} prompts_in_memory
 * @property {{num_prompts: number, num_bytes: number, num_restored: number, folder: string}} prompts_on_disk as /props has it
 * @property {{speculators: any[], reasons_not_drafted: Record<string, number>, control: any}} speculation
 * @property {Past[]} [history] of the last minutes; only in the first one
 */

/** @typedef {{time: number, tokens: number, num_draft_tokens: number, num_accepted_draft_tokens: number}} Past */

const SECONDS = 180;
const ACCEPTANCE_STATES = 5; // that each acceptance is measured over, as drafts are fewer than tokens

export class History {
  constructor() {
    /** @type {Past[]} */
    this.past = [];
    /** @type {State | null} */
    this.last = null;
    /** @type {State | null} */
    this.before = null;
  }

  /** @param {State} state */
  add(state) {
    // what was counted a moment before says nothing of a speed
    if (state.history) this.past = state.history.filter(({ time }) => time < state.time - 1);
    if (this.last && state.tokens < this.last.tokens) this.past = []; // the engine was started again
    this.before = state.history ? null : this.last;
    this.last = state;
    const { time, tokens, num_draft_tokens, num_accepted_draft_tokens } = state;
    this.past = [...this.past, { time, tokens, num_draft_tokens, num_accepted_draft_tokens }].filter((one) => one.time >= time - SECONDS);
  }

  /**
   * Points of the chart, oldest first.
   * @returns {{time: number, speed: number, accepted: number | null}[]} tokens per second; share of draft tokens
   */
  points() {
    return this.past.slice(1).map((now, i) => {
      const [then, longThen] = [this.past[i], this.past[Math.max(0, i + 1 - ACCEPTANCE_STATES)]];
      const drafted = now.num_draft_tokens - longThen.num_draft_tokens;
      const speed = Math.max(0, now.tokens - then.tokens) / Math.max(1, now.time - then.time);
      return { time: now.time, speed, accepted: drafted > 0 ? (now.num_accepted_draft_tokens - longThen.num_accepted_draft_tokens) / drafted : null };
    });
  }

  /**
   * Tokens a second of one slot's request since the state before.
   * @param {any} slot
   */
  speedOf(slot) {
    const old = this.before?.slots.find((one) => one.id === slot.id && one.id_task === slot.id_task);
    if (!old || !this.before || !this.last) return 0;
    return (slot.next_token[0].n_decoded - old.next_token[0].n_decoded) / (this.last.time - this.before.time);
  }
}

/**
 * How many drafts ended at each length, from how many had a token at each position. Those that continue
 * another speculator's begin further behind, so a position may have more than the one before it.
 * @param {number[]} byPosition
 * @returns {number[]} [length - 1] = drafts
 */
export function draftLengths(byPosition) {
  return byPosition.map((count, i) => Math.max(0, count - (byPosition[i + 1] ?? 0)));
}

/**
 * Positions in groups, finer where drafts are short: 1 to 8 alone, then eight, sixteen … together.
 * @param {number} count of positions
 * @returns {{label: string, from: number, to: number}[]} indices from (inclusive) and to (exclusive)
 */
export function positionGroups(count) {
  const groups = [];
  for (let from = 0; from < count; ) {
    const to = Math.min(count, from < 8 ? from + 1 : 2 * from);
    groups.push({ label: to - from === 1 ? `${to}` : `${from + 1}–${to}`, from, to });
    from = to;
  }
  return groups;
}
