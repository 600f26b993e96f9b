/** A/B: the same request with guessing ahead and without, one after the other, compared token by token. */

import { Answer, run } from "./answer.js";
import { byId, fill, h } from "./dom.js";
import { compareTokens, verdict } from "./equality.js";
import { paced } from "./frames.js";
import { walk, inspect } from "./inspector.js";
import { MarkdownView } from "./markdown.js";
import { bodyOf, loadSettings } from "./settings.js";
import { Tint } from "./tint.js";
import { showTotals } from "./totals.js";

/** One side while it runs. */
class Side {
  /** @param {string} title */
  constructor(title) {
    this.answer = new Answer();
    this.text = h("div", { class: "text" });
    this.totals = h("div", { class: "totals" });
    this.speed = h("span", { class: "speed" });
    this.body = h("div", { class: "body", tabindex: "0", role: "group", "aria-label": `${title}. Arrow keys walk along the tokens.` }, this.text);
    this.element = h("section", { class: "side" }, h("header", {}, h("h2", {}, title), this.speed), this.body, this.totals);
    this.markdown = new MarkdownView(this.text);
    this.tint = new Tint(this.answer.provenance, this.body);
    this.body.addEventListener("keydown", (/** @type {any} */ event) => walk(event, this.tint));
  }

  /** @param {boolean} isOver */
  draw(isOver) {
    while (!this.markdown.update(this.answer.content, isOver)); // both texts are short
    this.tint.update(this.markdown.blocks, this.markdown.numSettled);
    this.speed.textContent = this.answer.speed ? `${this.answer.speed.toFixed(1)} tokens/s` : "";
    showTotals(this.totals, this.answer.provenance, 0, null, false); // the speeds are measured here
  }
}

export class Compare {
  /** @param {{plainSteps: import("./plain-steps.js").PlainSteps, isDeterministic: () => boolean}} links */
  constructor(links) {
    this.links = links;
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
    this.prompt.value = messages.at(-1)?.content ?? "";
    this.run();
  }

  async run() {
    const messages = this.messages ?? [{ role: "user", content: this.prompt.value.trim() }];
    if (!messages.at(-1)?.content) return;
    const settings = bodyOf(loadSettings());
    const choice = byId("compare-setting").value;
    const seed = settings.seed >= 0 ? settings.seed : crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
    const chosen = choice ? { mode: choice } : settings.speculative?.mode === "off" ? { mode: "auto" } : settings.speculative;
    this.sides.forEach((side) => side.tint.remove());
    this.sides = [new Side("Guessing ahead"), new Side("One token at a time")];
    fill(byId("compare-sides"), ...this.sides.map((side) => side.element));
    this.running = new AbortController();
    this.button.textContent = "Stop";
    // guessing first: speculators may remember texts, and the second one would be known
    const bodies = [{ ...settings, speculative: chosen }, { ...settings, speculative: { mode: "off" } }];
    try {
      for (const [i, body] of bodies.entries()) {
        this.say(i ? "Running without guesses…" : "Running with guesses…");
        await this.runSide(this.sides[i], { messages, ...body, seed });
      }
      this.conclude();
    } catch (error) {
      this.say(this.running.signal.aborted ? "Stopped." : /** @type {Error} */ (error).message, "problem");
    }
    this.running = null;
    this.button.textContent = "Run both";
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
      side.draw(true);
      this.links.plainSteps.add(side.answer.provenance.data);
    }
  }

  conclude() {
    const [first, second] = this.sides.map((side) => side.answer);
    const comparison = compareTokens(first.provenance.data.tokens, second.provenance.data.tokens);
    const ratio = second.speed ? first.speed / second.speed : 0;
    const faster = ratio >= 1 ? `${ratio.toFixed(2)} times as fast` : `${ratio.toFixed(2)} times as fast: guessing cost more than it gave here`;
    this.say(
      `${verdict(comparison, this.links.isDeterministic())} ${first.speed.toFixed(1)} against ${second.speed.toFixed(1)} tokens/s: ${faster}.`,
      comparison.isEqual ? "equal" : "different",
    );
  }

  /**
   * @param {string} text
   * @param {string} [kind]
   */
  say(text, kind = "") {
    const box = byId("compare-verdict");
    box.className = `verdict ${kind}`;
    box.hidden = false;
    fill(box, kind === "equal" ? h("span", { class: "mark", "aria-hidden": "true" }, "=") : kind === "different" ? h("span", { class: "mark", "aria-hidden": "true" }, "≠") : null, h("span", {}, text));
  }
}
