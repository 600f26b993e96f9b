/** One message on the page: text, thoughts, tool calls, totals and what can be done with it. */

import { fill, h, iconButton } from "./dom.js";
import { walk } from "./inspector.js";
import { MarkdownView, copyText } from "./markdown.js";
import { Provenance } from "./provenance.js";
import { Tint } from "./tint.js";
import { showTotals } from "./totals.js";

/** @typedef {import("./tree.js").Message} Message */

/**
 * @typedef {object} Actions
 * @property {(message: Message) => void} regenerate
 * @property {(message: Message, text: string) => void} edit
 * @property {(message: Message, step: number) => void} branch to another sibling
 * @property {(message: Message) => void} compare
 * @property {(message: Message) => void} proceed with an answer that was cut off
 */

const STATES = { stopped: "Stopped.", failed: "", running: "", done: "" };
const FINISHES = /** @type {Record<string, string>} */ ({ length: "Cut off at the limit of tokens or of the context." });

export class MessageView {
  /**
   * @param {Message} message
   * @param {Actions} actions
   * @param {{index: number, count: number}} place among its siblings
   */
  constructor(message, actions, place) {
    this.message = message;
    this.actions = actions;
    this.provenance = new Provenance(message.provenance);
    this.text = h("div", { class: "text" });
    this.thoughts = h("div", { class: "text" });
    this.thoughtsBox = h("details", { class: "thoughts", hidden: true }, h("summary", {}, "Thoughts"), this.thoughts);
    this.calls = h("div", { class: "calls" });
    this.note = h("p", { class: "note", hidden: true });
    this.totals = h("div", { class: "totals" });
    this.bar = h("div", { class: "actions" });
    const isAnswer = message.role === "assistant";
    this.body = h("div", {
      class: "body",
      ...(isAnswer && { tabindex: "0", role: "group", "aria-label": "Answer. Arrow keys walk along its tokens." }),
    }, this.thoughtsBox, this.text, this.calls);
    this.element = h(
      "article",
      { class: `message ${message.role}`, "aria-label": isAnswer ? "Answer" : "You" },
      this.body, this.note, isAnswer && this.totals, this.bar,
    );
    this.markdown = new MarkdownView(this.text);
    this.thoughtsMarkdown = new MarkdownView(this.thoughts);
    this.tint = new Tint(this.provenance, this.body);
    if (isAnswer) this.body.addEventListener("keydown", (/** @type {any} */ event) => walk(event, this.tint));
    this.later = 0; // timer of the rest of a long text
    this.showActions(place);
    this.update(null, null);
  }

  /**
   * Show what the message holds now.
   * @param {import("./answer.js").Answer | null} answer while it arrives
   * @param {number | null} plainStepMs
   */
  update(answer, plainStepMs) {
    const { message } = this;
    if (message.role === "user") {
      this.text.textContent = message.content;
      return;
    }
    const isOver = message.state !== "running";
    this.thoughtsBox.hidden = !message.reasoning;
    let isShown = !message.reasoning || this.thoughtsMarkdown.update(message.reasoning, isOver || message.content !== "");
    isShown &&= this.markdown.update(message.content, isOver);
    this.showCalls();
    this.showNote(answer);
    // thoughts are written first, so they are looked for first
    this.tint.update(
      [...this.thoughtsMarkdown.blocks, ...this.markdown.blocks, this.calls],
      isOver && isShown ? this.thoughtsMarkdown.blocks.length + this.markdown.blocks.length + 1 : this.numSettled(),
    );
    clearTimeout(this.later);
    this.later = isShown ? 0 : setTimeout(() => this.update(answer, plainStepMs));
    showTotals(this.totals, this.provenance, answer?.speed ?? message.timings?.predicted_per_second ?? 0, plainStepMs);
    this.element.classList.toggle("running", !isOver || !isShown);
  }

  /** Blocks that will not change; those of the text count once the thoughts are over. */
  numSettled() {
    const { numSettled, blocks } = this.thoughtsMarkdown;
    return numSettled < blocks.length ? numSettled : numSettled + this.markdown.numSettled;
  }

  showCalls() {
    const calls = this.message.toolCalls ?? [];
    if (!calls.length) return;
    fill(
      this.calls,
      calls.map((call) => h("div", { class: "call" }, h("div", { class: "code-head", "data-not-model-text": true }, "Calls a tool"), h("p", {}, h("code", {}, call.name)), h("pre", { tabindex: "0" }, h("code", {}, call.arguments)))),
    );
  }

  /** @param {import("./answer.js").Answer | null} answer */
  showNote(answer) {
    const { state, failure, finish } = this.message;
    const progress = answer?.progress;
    const reading = state === "running" && progress && progress.processed < progress.total;
    const text = reading
      ? `Reading the prompt: ${Math.round((100 * progress.processed) / progress.total)} % of ${progress.total} tokens`
      : failure || STATES[state ?? "done"] || FINISHES[finish ?? ""] || "";
    this.note.textContent = text;
    this.note.hidden = !text;
    this.note.classList.toggle("problem", state === "failed");
  }

  /** @param {{index: number, count: number}} place */
  showActions({ index, count }) {
    const { message, actions } = this;
    const branches = count > 1 && [
      iconButton("left", "Earlier version", () => actions.branch(message, -1), { disabled: index === 0 }),
      h("span", { class: "count" }, `${index + 1} / ${count}`),
      iconButton("right", "Later version", () => actions.branch(message, 1), { disabled: index === count - 1 }),
    ];
    const copy = iconButton("copy", "Copy", () => copyText(message.content));
    const isCutOff = message.state === "stopped" || message.state === "failed" || message.finish === "length";
    fill(
      this.bar,
      branches,
      copy,
      message.role === "user"
        ? iconButton("edit", "Edit and ask again", () => this.startEditing())
        : [
            iconButton("retry", "Answer again", () => actions.regenerate(message)),
            iconButton("compare", "Compare with guessing off", () => actions.compare(message)),
            isCutOff && message.content && iconButton("forward", "Continue", () => actions.proceed(message)),
          ],
    );
  }

  startEditing() {
    const { message, actions } = this;
    const area = h("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1), "aria-label": "Your message" });
    const end = () => {
      this.text.textContent = message.content;
      this.bar.hidden = false;
    };
    const form = h(
      "form",
      {
        class: "editing",
        onsubmit: (/** @type {Event} */ event) => {
          event.preventDefault();
          actions.edit(message, area.value);
        },
        onkeydown: (/** @type {KeyboardEvent} */ event) => {
          if (event.key === "Escape") end();
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) actions.edit(message, area.value);
        },
      },
      area,
      h("div", { class: "row" }, h("button", { type: "button", class: "quiet", onclick: end }, "Cancel"), h("button", { class: "primary" }, "Ask")),
    );
    fill(this.text, form);
    this.bar.hidden = true;
    area.focus();
  }

  remove() {
    clearTimeout(this.later);
    this.tint.remove();
    this.element.remove();
  }
}
