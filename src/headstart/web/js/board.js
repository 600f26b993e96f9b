/** The board: what the server does now. Listens to /events only while it is shown. */

import { getJson, stream } from "./api.js";
import { ThroughputChart, showBars, showShares } from "./charts.js";
import { byId, fill, h } from "./dom.js";
import { History, draftLengths } from "./history.js";
import { labelOf, styleOf, swatch } from "./speculators.js";
import { durationInWords, rankedReasons, shareInWords, sizeInWords } from "./words.js";

/** @typedef {import("./history.js").State} State */

const RETRY_PAUSE = 2000; // milliseconds
const MOST_BARS = 16;

export class Board {
  constructor() {
    this.history = new History();
    this.chart = new ThroughputChart(byId("throughput"));
    /** @type {AbortController | null} */
    this.listening = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.isShown && this.listen()));
    this.isShown = false;
  }

  show() {
    this.isShown = true;
    this.listen();
    this.showSettings();
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
    const listening = (this.listening = new AbortController());
    while (!listening.signal.aborted) {
      try {
        for await (const state of stream("events", null, listening.signal)) this.take(state);
        this.say("The server closed the connection; trying again…");
      } catch (error) {
        if (listening.signal.aborted) return;
        this.say(`No connection to the server: ${/** @type {Error} */ (error).message}`);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_PAUSE));
    }
  }

  /** @param {string} text */
  say(text) {
    byId("board-note").textContent = text;
  }

  /** @param {State} state */
  take(state) {
    this.say("");
    this.history.add(state);
    this.chart.show(this.history.columns());
    showNow(state);
    showSlots(state, this.history);
    showWhy(state);
    showSpeculators(state.speculation.speculators);
    showCosts(state.speculation.control);
    const { target, drafts, other } = state.seconds;
    showShares(byId("time-split"), [
      { label: "model", value: target, text: durationInWords(target), style: "part-target" },
      { label: "drafting", value: drafts, text: durationInWords(drafts), style: "part-draft" },
      { label: "everything else", value: other, text: durationInWords(other), style: "part-other" },
    ]);
  }

  async showSettings() {
    const props = await getJson("props").catch(() => null);
    if (!props?.settings) return;
    const rows = props.settings.map((/** @type {any} */ one) =>
      h("tr", { class: one.origin === "default" ? "" : "changed" }, h("th", { scope: "row" }, one.name), h("td", {}, one.value === null ? "–" : String(one.value)), h("td", {}, one.origin)),
    );
    fill(byId("settings-in-force"), h("table", {}, h("thead", {}, h("tr", {}, ["setting", "value", "from"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)));
  }
}

/** @param {State} state */
function showNow(state) {
  const { num_draft_tokens: drafted, num_accepted_draft_tokens: accepted } = state;
  const steps = state.num_slot_steps;
  fill(
    byId("now"),
    [
      ["tokens/s", state.tokens_per_second.toFixed(state.tokens_per_second < 100 ? 1 : 0)],
      ["slots busy", `${state.num_processing} of ${state.slots.length}`],
      ["waiting", String(state.num_waiting)],
      ["guesses accepted", drafted ? `${Math.round((100 * accepted) / drafted)} %` : "–"],
      ["tokens a step", steps ? (state.tokens / steps).toFixed(2) : "–"],
      ["memory", sizeInWords(state.memory_bytes.engine + state.memory_bytes.server)],
      ["running for", durationInWords(state.uptime_seconds)],
    ].map(([label, value]) => h("div", { class: "figure" }, h("dd", {}, value), h("dt", {}, label))),
  );
}

/**
 * @param {State} state
 * @param {History} history
 */
function showSlots(state, history) {
  fill(
    byId("slots"),
    state.slots.map((slot) => {
      const token = slot.next_token[0];
      const read = slot.n_prompt_tokens_processed + slot.n_prompt_tokens_cache;
      const isReading = slot.is_processing && !token.n_decoded;
      const doing = !slot.is_processing ? "idle" : isReading ? `reading ${read} of ${slot.n_prompt_tokens}` : `${token.n_decoded} tokens`;
      const speed = slot.is_processing && !isReading ? `${history.speedOf(slot).toFixed(1)} /s` : "";
      const guessed = slot.draft_n ? `${slot.draft_n_accepted} of ${slot.draft_n}` : "–";
      const meter = h("span", { class: "meter", title: `${slot.n_tokens_in_cache} of ${slot.n_ctx} tokens of context` }, h("span", {}));
      meter.firstChild.style.width = `${Math.min(100, (100 * slot.n_tokens_in_cache) / slot.n_ctx)}%`;
      return h("tr", { class: slot.is_processing ? "busy" : "" }, h("th", { scope: "row" }, slot.id), h("td", {}, doing), h("td", {}, speed), h("td", {}, guessed), h("td", {}, meter));
    }),
  );
}

/** @param {State} state */
function showWhy(state) {
  const ranked = rankedReasons(state.speculation.reasons_not_drafted);
  const failures = state.speculation.speculators.filter((one) => one.failure);
  fill(
    byId("why"),
    failures.map((one) => h("p", { class: "problem" }, `${one.name} failed and is off for those requests: ${one.failure}`)),
    ranked.length
      ? h("ul", { class: "reasons" }, ranked.slice(0, 6).map((one) => h("li", {}, h("strong", {}, shareInWords(one.share)), ` ${one.words}`)))
      : h("p", { class: "hint" }, "Every step so far had a guess, or there was none yet."),
  );
}

/** @param {any[]} speculators */
function showSpeculators(speculators) {
  fill(
    byId("speculators"),
    speculators.map((one) => {
      const share = one.num_draft_tokens ? `${Math.round((100 * one.num_accepted_draft_tokens) / one.num_draft_tokens)} %` : "–";
      const seconds = Object.values(one.seconds).reduce((sum, value) => /** @type {number} */ (sum) + /** @type {number} */ (value), 0);
      return h("tr", {}, h("th", { scope: "row" }, swatch(one.name)), [one.num_calls, one.num_drafts, one.num_draft_tokens, share, one.num_rows_wasted, durationInWords(Number(seconds))].map((value) => h("td", {}, value)));
    }),
  );
  showByPosition(speculators);
}

/** @param {any[]} speculators */
function showByPosition(speculators) {
  const used = speculators.filter((one) => one.num_draft_tokens);
  fill(
    byId("positions"),
    used.length ? null : h("p", { class: "hint" }, "Nothing yet."),
    used.map((one) => {
      const acceptance = h("div", {});
      const lengths = h("div", {});
      const style = `solid-${styleOf(one.name)}`;
      showBars(
        acceptance,
        one.draft_tokens_by_position.slice(0, MOST_BARS).map((/** @type {number} */ count, /** @type {number} */ i) => {
          const rate = (100 * (one.accepted_draft_tokens_by_position[i] ?? 0)) / count;
          return { label: String(i + 1), value: rate, text: `${Math.round(rate)}`, style };
        }),
        `Percent of ${labelOf(one.name)}'s guesses accepted, by position in the draft`,
      );
      showBars(
        lengths,
        draftLengths(one.draft_tokens_by_position).slice(0, MOST_BARS).map((count, i) => ({ label: String(i + 1), value: count, text: String(count), style })),
        `Drafts of ${labelOf(one.name)} by length`,
      );
      return h("div", { class: "pair" }, h("h3", {}, one.name), h("h4", {}, "accepted, % by position"), acceptance, h("h4", {}, "drafts by length"), lengths);
    }),
  );
}

/** @param {any} control */
function showCosts(control) {
  const rows = Object.entries(control?.cost_ms?.rows ?? {}).map(([label, value]) => ({ label, value: Number(value), text: Number(value).toFixed(Number(value) < 10 ? 1 : 0) }));
  showBars(byId("costs"), rows, "Milliseconds of a step by rows");
  const models = Object.entries(control?.draft_models ?? {});
  fill(
    byId("draft-prices"),
    models.map(([name, price]) => {
      const round = Object.entries(/** @type {any} */ (price).round_ms ?? {})[0];
      return round ? h("p", { class: "hint" }, `${name}: ${Number(round[1]).toFixed(1)} ms for a draft token (${round[0]} at a time)`) : null;
    }),
  );
}
