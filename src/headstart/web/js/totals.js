/** The line under an answer: speed, what guessing gave, who guessed. */

import { fill, h } from "./dom.js";
import { swatch } from "./speculators.js";

/** @typedef {import("./provenance.js").Provenance} Provenance */

/**
 * @param {HTMLElement} root
 * @param {Provenance} provenance
 * @param {number} speed tokens a second
 * @param {number | null} plainStepMs what a step without a draft costs
 * @param {boolean} [showsSpeedup] the estimate
 */
export function showTotals(root, provenance, speed, plainStepMs, showsSpeedup = true) {
  const totals = provenance.totals(plainStepMs);
  const has = totals.tokens > 0;
  fill(
    root,
    speed > 0 && fact(speed.toFixed(speed < 10 ? 1 : 0), "tokens/s"),
    has && showsSpeedup && totals.speedup !== null && totals.saved > 0 && fact(`≈ ${totals.speedup.toFixed(1)} ×`, "as fast as without", "estimated from the time of steps without a draft"),
    has && fact(totals.perStep.toFixed(1), "tokens a step"),
    has && totals.drafted > 0 && fact(`${Math.round((100 * totals.guessed) / totals.drafted)} %`, "of guesses right"),
    has && totals.saved > 0 && fact(String(totals.saved), totals.saved === 1 ? "step saved" : "steps saved"),
    has &&
      h(
        "span",
        { class: "legend" },
        [...totals.bySource].sort(([one], [other]) => (one < other ? -1 : 1)).map(([source, count]) => swatch(source, String(count))),
      ),
  );
}

/**
 * @param {string} value
 * @param {string} label
 * @param {string} [title]
 */
function fact(value, label, title) {
  return h("span", { class: "fact", title }, h("strong", {}, value), ` ${label}`);
}
