/** The board: what the server does now. Listens to /events only while it is shown. */

import { getJson, stream } from "./api.js";
import { showBars, showShares, showTimeline } from "./charts.js";
import { byId, h, update } from "./dom.js";
import { duration, number, percent, rankedReasons, rate, size } from "./format.js";
import { History, draftLengths, positionGroups } from "./history.js";
import { labelOf, styleOf, swatch } from "./speculators.js";
import { language, words } from "./words.js";

/** @typedef {import("./history.js").State} State */

const RETRY_PAUSE = 2000; // milliseconds
const MOST_REASONS = 6;

export class Board {
  constructor() {
    this.history = new History();
    /** @type {AbortController | null} */
    this.listening = null;
    this.isShown = false;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.isShown && this.listen()));
  }

  show() {
    this.isShown = true;
    this.listen();
    showSettings();
  }

  leave() {
    this.isShown = false;
    this.pause();
  }

  pause() {
    this.listening?.abort();
    this.listening = null;
  }

  async listen() {
    if (this.listening) return;
    const { signal } = (this.listening = new AbortController());
    while (!signal.aborted) {
      try {
        for await (const state of stream("events", null, signal)) this.take(state);
      } catch {
        if (signal.aborted) return;
      }
      const { last } = this.history;
      byId("board-note").textContent = last ? words.lastSeen(new Date(1000 * last.time).toLocaleTimeString(language)) : words.noServer;
      await new Promise((resolve) => setTimeout(resolve, RETRY_PAUSE));
    }
  }

  /** @param {State} state */
  take(state) {
    byId("board-note").textContent = "";
    this.history.add(state);
    showTimeline(byId("throughput"), this.history.points());
    showNow(state);
    showSlots(state, this.history);
    showWhy(state);
    showSpeculators(state.speculation.speculators);
    showCosts(state.speculation.control);
    const { target, drafts, other } = state.seconds;
    showShares(byId("time-split"), [
      { label: words.partTarget, value: target, text: duration(target), style: "part-target" },
      { label: words.partDrafts, value: drafts, text: duration(drafts), style: "part-drafts" },
      { label: words.partOther, value: other, text: duration(other), style: "part-other" },
    ]);
  }
}

async function showSettings() {
  const props = await getJson("props").catch(() => null);
  if (!props?.settings) return;
  const rows = props.settings.map((/** @type {any} */ one) => row(one.name, [one.value === null ? "–" : String(one.value), one.origin], one.origin !== "default" && "changed"));
  const heads = [words.setting, words.value, words.origin].map((name) => h("th", { scope: "col" }, name));
  update(byId("settings-in-force"), h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
}

/**
 * @param {any} name
 * @param {any[]} cells
 * @param {string | false} [kind]
 */
function row(name, cells, kind = false) {
  return h("tr", { class: kind }, h("th", { scope: "row" }, name), cells.map((cell) => h("td", {}, cell)));
}

/** @param {State} state */
function showNow(state) {
  const { num_draft_tokens: drafted, num_accepted_draft_tokens: accepted, num_slot_steps: steps } = state;
  const speedup = state.speculation.control?.speedup;
  const figures = [
    [words.tokensPerSecond, rate(state.tokens_per_second)],
    [words.overBaselineShort, speedup ? words.times(number(speedup, 1)) : "–"],
    [words.draftsAccepted, drafted ? percent(accepted / drafted) : "–"],
    [words.tokensPerStep, steps ? number(state.tokens / steps, 2) : "–"],
    [words.slotsBusy, words.nOf(number(state.num_processing), number(state.slots.length))],
    [words.waiting, number(state.num_waiting)],
    [words.memory, size(state.memory_bytes.engine + state.memory_bytes.server)],
    [words.runningFor, duration(state.uptime_seconds)],
  ];
  update(byId("now"), figures.map(([label, value]) => h("div", { class: "figure" }, h("dt", {}, label), h("dd", {}, value))));
}

/**
 * @param {State} state
 * @param {History} history
 */
function showSlots(state, history) {
  const rows = state.slots.map((slot) => {
    const [token] = slot.next_token;
    const isReading = slot.is_processing && !token.n_decoded;
    const read = slot.n_prompt_tokens_processed + slot.n_prompt_tokens_cache;
    const doing = !slot.is_processing ? words.idle : isReading ? words.reading(number(read), number(slot.n_prompt_tokens)) : words.numTokens(token.n_decoded, number(token.n_decoded));
    const speed = slot.is_processing && !isReading ? rate(history.speedOf(slot)) : "";
    const accepted = slot.draft_n ? words.nOf(number(slot.draft_n_accepted), number(slot.draft_n)) : "–";
    const filled = h("span", {});
    filled.style.width = percent(Math.min(1, slot.n_tokens_in_cache / slot.n_ctx)).replaceAll(" ", "");
    const meter = h("span", { class: "meter", title: words.contextTitle(number(slot.n_tokens_in_cache), number(slot.n_ctx)) }, filled);
    return row(slot.id, [doing, speed, accepted, meter], slot.is_processing && "busy");
  });
  update(byId("slots"), rows);
  const told = (/** @type {any} */ kept) => /** @type {const} */ ([number(kept.num_prompts), size(kept.num_bytes), number(kept.num_restored)]);
  const { prompts_in_memory: inMemory, prompts_on_disk: onDisk } = state;
  byId("kept-prompts").textContent = words.keptInMemory(...told(inMemory)) + (onDisk.folder && words.keptOnDisk(...told(onDisk)));
}

/** @param {State} state */
function showWhy(state) {
  const ranked = rankedReasons(state.speculation.reasons_not_drafted).slice(0, MOST_REASONS);
  const failures = state.speculation.speculators.filter((one) => one.failure);
  const reasons = ranked.map((one) => h("li", {}, h("strong", {}, percent(one.share)), h("span", {}, one.words)));
  update(
    byId("why"),
    failures.map((one) => h("p", { class: "problem" }, words.failedSpeculator(one.name, one.failure))),
    ranked.length ? h("ul", { class: "reasons" }, reasons) : h("p", { class: "hint" }, words.allHadDrafts),
  );
}

/** @param {any[]} speculators */
function showSpeculators(speculators) {
  const rows = speculators.map((one) => {
    const share = one.num_draft_tokens ? percent(one.num_accepted_draft_tokens / one.num_draft_tokens) : "–";
    const seconds = /** @type {number[]} */ (Object.values(one.seconds)).reduce((sum, value) => sum + value, 0);
    const counts = [one.num_calls, one.num_drafts, one.num_draft_tokens].map((count) => number(count));
    return row(swatch(one.name), [...counts, share, number(one.num_rows_wasted), duration(seconds)]);
  });
  update(byId("speculators"), rows);
  const used = speculators.filter((one) => one.num_draft_tokens);
  update(byId("positions"), used.length ? used.map(byPosition) : h("p", { class: "hint" }, words.nothingYet));
}

/** @param {any} one speculator */
function byPosition({ name, draft_tokens_by_position: drafted, accepted_draft_tokens_by_position: accepted }) {
  const acceptance = h("div", {});
  const lengths = h("div", {});
  const style = `solid-${styleOf(name)}`;
  const groups = positionGroups(drafted.length);
  const sum = (/** @type {number[]} */ counts, /** @type {{from: number, to: number}} */ { from, to }) => counts.slice(from, to).reduce((total, count) => total + count, 0);
  const rates = groups.map((group) => (100 * sum(accepted, group)) / Math.max(1, sum(drafted, group)));
  const counts = groups.map((group) => sum(draftLengths(drafted), group));
  showBars(acceptance, groups.map(({ label }, i) => ({ label, value: rates[i], text: number(rates[i]), style })), words.byPositionOf(labelOf(name)));
  showBars(lengths, groups.map(({ label }, i) => ({ label, value: counts[i], text: number(counts[i]), style })), words.byLengthOf(labelOf(name)));
  return h("div", { class: "pair" }, h("h3", {}, name), h("h4", {}, words.byPosition), acceptance, h("h4", {}, words.byLength), lengths);
}

/** @param {any} control */
function showCosts(control) {
  /** @type {Record<string, number>} */
  const costs = control?.cost_ms?.rows ?? {};
  const widths = Object.keys(costs).map(Number);
  const shown = positionGroups(Math.max(0, ...widths)).map(({ from, to }) => widths.findLast((width) => from < width && width <= to));
  const bars = shown.filter((width) => width !== undefined).map((width) => ({ label: String(width), value: costs[width], text: rate(costs[width]) }));
  showBars(byId("costs"), bars, words.costTitle);
  const prices = Object.entries(control?.draft_models ?? {}).map(([name, price]) => {
    const [count, ms] = Object.entries(/** @type {any} */ (price).round_ms ?? {})[0] ?? [];
    return count && h("p", { class: "hint" }, words.draftPrice(name, rate(Number(ms)), count));
  });
  update(byId("draft-prices"), prices);
}
