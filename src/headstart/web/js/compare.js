/** A/B: the same request with drafts and without, one after the other, compared token by token. */

import { Answer, run } from "./answer.js";
import { byId, fill, h } from "./dom.js";
import { compareTokens, verdict } from "./equality.js";
import { legend, showDetails, summary } from "./facts.js";
import { number, rate } from "./format.js";
import { nextTask, paced } from "./frames.js";
import { inspect, walk } from "./inspector.js";
import { MarkdownView } from "./markdown.js";
import { bodyOf } from "./settings.js";
import { Tint } from "./tint.js";
import { words } from "./words.js";

/** One side while it runs. */
class Side {
  /** @param {string} title */
  constructor(title) {
    this.answer = new Answer();
    this.text = h("div", { class: "text" });
    this.legend = h("div", {});
    this.line = h("summary", {});
    this.details = h("dl", {});
    this.facts = h("details", { class: "facts", hidden: true }, this.line, this.details);
    this.speed = h("span", { class: "speed" });
    this.body = h("div", { class: "body", tabindex: "0", role: "group", "aria-label": words.sideKeys(title) }, this.text);
    this.element = h("section", { class: "side" }, h("header", {}, h("h2", {}, title), this.speed), this.body, this.legend, this.facts);
    this.markdown = new MarkdownView(this.text);
    this.tint = new Tint(this.answer.provenance, this.body);
    this.body.addEventListener("keydown", (/** @type {any} */ event) => walk(event, this.tint));
  }

  /** @param {boolean} isOver @returns {boolean} whether all is shown */
  draw(isOver) {
    const isShown = this.markdown.update(this.answer.content, isOver);
    this.tint.update(this.markdown.blocks, this.markdown.numSettled);
    this.speed.textContent = this.answer.speed ? words.perSecond(rate(this.answer.speed)) : "";
    if (isOver && isShown) this.conclude();
    return isShown;
  }

  conclude() {
    const { answer } = this;
    const { provenance } = answer;
    const message = { ...answer, state: /** @type {const} */ ("done"), baselineMs: 0, firstMs: answer.firstTokenAt - answer.startedAt };
    fill(this.legend, legend(provenance.totals().bySource));
    this.line.textContent = summary(message, provenance, 0);
    this.facts.hidden = !this.line.textContent;
    showDetails(this.details, message, provenance);
  }
}

export class Compare {
  /**
   * @param {import("./server.js").Server} server
   * @param {() => Record<string, string>} settings of requests
   */
  constructor(server, settings) {
    this.server = server;
    this.settings = settings;
    /** @type {any[] | null} messages of the chat; null: what is written in the field */
    this.messages = null;
    /** @type {AbortController | null} */
    this.running = null;
    /** @type {Side[]} */
    this.sides = [];
    this.prompt = byId("compare-prompt");
    this.button = byId("compare-run");
    byId("compare-form").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      if (this.running) this.running.abort();
      else this.run();
    });
    this.prompt.addEventListener("input", () => (this.messages = null));
    inspect(byId("compare"));
  }

  /** Take a request of the chat over and run it. @param {any[]} messages */
  open(messages) {
    if (this.running) return;
    this.messages = messages;
    const { content = "" } = messages.at(-1) ?? {};
    this.prompt.value = typeof content === "string" ? content : content.at(-1).text;
    this.run();
  }

  async run() {
    const messages = this.messages ?? [{ role: "user", content: this.prompt.value.trim() }];
    if (!messages.at(-1)?.content) return;
    const settings = bodyOf(this.settings());
    const choice = byId("compare-setting").value;
    const seed = settings.seed >= 0 ? settings.seed : crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
    const chosen = choice ? { mode: choice } : settings.speculative?.mode === "off" ? { mode: "auto" } : settings.speculative;
    this.sides.forEach((side) => side.tint.remove());
    this.sides = [new Side(words.withDrafts), new Side(words.baseline)];
    fill(byId("compare-sides"), ...this.sides.map((side) => side.element));
    this.running = new AbortController();
    this.button.textContent = words.halt;
    // drafts first: speculators may remember texts, and the second one would be known
    const bodies = [{ ...settings, speculative: chosen }, { ...settings, speculative: { mode: "off" } }];
    try {
      for (const [i, body] of bodies.entries()) {
        this.say(i ? words.runningBaseline : words.runningDrafts);
        await this.runSide(this.sides[i], { messages, ...body, seed });
      }
      this.conclude();
    } catch (error) {
      this.say(this.running.signal.aborted ? words.stopped : /** @type {Error} */ (error).message, "problem");
    }
    this.running = null;
    this.button.textContent = words.runBoth;
  }

  /**
   * @param {Side} side
   * @param {Record<string, any>} body
   */
  async runSide(side, body) {
    const draw = paced(() => side.draw(false));
    const { signal } = /** @type {AbortController} */ (this.running);
    try {
      await run(body, side.answer, signal, draw.ask);
    } finally {
      draw.flush();
      while (!side.draw(true)) await nextTask();
    }
  }

  conclude() {
    const [first, second] = this.sides.map((side) => side.answer);
    const comparison = compareTokens(first.provenance.data.tokens, second.provenance.data.tokens);
    const ratio = second.speed ? first.speed / second.speed : 0;
    const speeds = words.speeds(number(first.speed, 1), number(second.speed, 1), number(ratio, 2));
    this.say([verdict(comparison, this.server.isExact), speeds, ratio < 1 && words.slower].filter(Boolean).join(" "), comparison.isEqual ? "equal" : "different");
  }

  /**
   * @param {string} text
   * @param {string} [kind]
   */
  say(text, kind = "") {
    const box = byId("compare-verdict");
    const mark = { equal: "=", different: "≠" }[kind];
    box.className = `verdict ${kind}`;
    box.hidden = false;
    fill(box, mark && h("span", { class: "mark", "aria-hidden": "true" }, mark), h("span", {}, text));
  }
}
