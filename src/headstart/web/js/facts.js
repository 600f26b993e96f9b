/** The line under an answer, and its details: what it took, what drafts gave, where its tokens are from. */

import { fill, h } from "./dom.js";
import { duration, number, percent, rankedReasons, rate } from "./format.js";
import { swatch } from "./speculators.js";
import { words } from "./words.js";

/** @typedef {import("./provenance.js").Provenance} Provenance */
/** @typedef {Pick<import("./tree.js").Message, "timings" | "metrics" | "seed" | "model" | "counterfactual" | "state" | "firstMs" | "baselineMs">} Took */

/**
 * "28 tokens · 0.2 s · first after 40 ms · 3.5 ×"
 * @param {Took} message
 * @param {Provenance} provenance
 * @param {number} speed tokens a second while it is written; 0 when it is over
 * @returns {string}
 */
export function summary(message, provenance, speed) {
  const count = provenance.starts.length || message.timings?.predicted_n || 0;
  if (!count) return "";
  const { speedup, saved } = provenance.totals(message.baselineMs);
  const isOver = message.state !== "running";
  return [
    words.numTokens(count, number(count)),
    isOver && message.timings ? duration(((message.firstMs ?? 0) + message.timings.predicted_ms) / 1000) : speed > 0 && words.perSecond(rate(speed)),
    isOver && message.firstMs && words.firstAfter(duration(message.firstMs / 1000)),
    isOver && speedup !== null && saved > 0 && `≈ ${words.times(number(speedup, 1))}`,
  ].filter(Boolean).join(" · ");
}

/**
 * @param {HTMLElement} root
 * @param {Took} message
 * @param {Provenance} provenance
 */
export function showDetails(root, message, provenance) {
  const { timings, metrics, seed, model, counterfactual } = message;
  const alone = Object.entries(counterfactual ?? {}).map(([name, one]) => swatch(name, number(one.mean_acceptance_length, 1)));
  const totals = provenance.totals(message.baselineMs);
  const isDrafted = totals.drafted > 0;
  const reasons = rankedReasons(metrics?.speculative_decoding?.reasons_not_drafted ?? {}).slice(0, 3);
  fill(
    root,
    model && row(words.model, model),
    timings && row(words.speed, words.perSecond(rate(timings.predicted_per_second))),
    totals.speedup !== null && totals.plainMs && totals.saved > 0 && row(words.speedup, words.overBaseline(number(totals.speedup, 1), rate(1000 / totals.plainMs))),
    timings && row(words.prompt, words.promptFacts(number(timings.prompt_n + timings.cache_n), number(timings.cache_n), duration(timings.prompt_ms / 1000))),
    isDrafted && row(words.draftTokens, words.acceptedOf(number(totals.accepted), number(totals.drafted), percent(totals.accepted / totals.drafted))),
    totals.tokens > 0 && row(words.perStep, words.stepsSaved(number(totals.perStep, 1), number(totals.saved))),
    alone.length > 0 && row(words.eachAlone, h("span", { class: "legend" }, alone)),
    reasons.length > 0 && row(words.withoutDraft, reasons.map((one) => h("div", {}, `${percent(one.share)} ${one.words}`))),
    Number(seed) >= 0 && row(words.seed, String(seed)),
    totals.tokens > 0 && row(words.from, legend(totals.bySource)),
  );
}

/** @param {Map<string, number>} bySource */
export function legend(bySource) {
  const sources = [...bySource].sort(([one], [other]) => (one < other ? -1 : 1));
  return h("span", { class: "legend" }, sources.map(([source, count]) => swatch(source, number(count))));
}

/**
 * @param {string} label
 * @param {any} value
 */
function row(label, value) {
  return h("div", {}, h("dt", {}, label), h("dd", {}, value));
}
