/** What each speculator alone would have given: the rows of the board's table. */

/** @typedef {{ tokens_per_second: number, error: number | null, speedup: number }} Speed */
/** @typedef {Speed & { best_length: number, share_seen: number, hindsight: Speed }} OfSpeculator */
/** @typedef {{ off: Speed, hindsight: Speed, speculators: Record<string, OfSpeculator> }} Counterfactual */

const WELL_SEEN = 0.5; // share of the text; below, an estimate is rough

/** @param {Speed} speed */
export function speedInWords(speed) {
  const digits = speed.tokens_per_second < 100 ? 1 : 0;
  const error = speed.error === null ? "" : ` ± ${speed.error.toFixed(digits)}`;
  return `${speed.tokens_per_second.toFixed(digits)}${error}`;
}

/**
 * @param {Counterfactual | null | undefined} told
 * @returns {{ name: string, isSpeculator: boolean, cells: string[] }[]}
 */
export function whatIfRows(told) {
  if (!told) return [];
  const speculators = Object.entries(told.speculators).map(([name, one]) => ({
    name,
    isSpeculator: true,
    cells: [String(one.best_length), speedInWords(one), one.speedup.toFixed(2), speedInWords(one.hindsight), `${Math.round(100 * one.share_seen)} %${one.share_seen < WELL_SEEN ? ", rough" : ""}`],
  }));
  speculators.sort((a, b) => told.speculators[b.name].speedup - told.speculators[a.name].speedup);
  const all = { name: "all, in hindsight", isSpeculator: false, cells: ["", speedInWords(told.hindsight), told.hindsight.speedup.toFixed(2), "", ""] };
  const off = { name: "off", isSpeculator: false, cells: ["0", speedInWords(told.off), "1.00", "", ""] };
  return [...speculators, all, off];
}
