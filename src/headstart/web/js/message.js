/** One message on the page: text, reasoning, tool calls, what it took and what can be done with it. */

import { chips } from "./attachments.js";
import { fill, h, iconButton } from "./dom.js";
import { showDetails, summary } from "./facts.js";
import { number, percent } from "./format.js";
import { walk } from "./inspector.js";
import { MarkdownView, copyText, showPlain } from "./markdown.js";
import { Provenance } from "./provenance.js";
import { Tint } from "./tint.js";
import { calling } from "./tools.js";
import { words } from "./words.js";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {import("./answer.js").Answer} Answer */

/**
 * @typedef {object} Actions
 * @property {(message: Message) => void} regenerate
 * @property {(message: Message, text: string) => void} edit
 * @property {(message: Message, step: number) => void} branch to another sibling
 * @property {(message: Message) => void} compare
 * @property {(message: Message) => void} proceed with an answer that was cut off
 * @property {(message: Message) => void} remove
 * @property {(message: Message) => void} runCalls of tools
 */

const LATER = 16; // milliseconds until the rest of a long text is shown

export class MessageView {
  /**
   * @param {Message} message
   * @param {Actions} actions
   * @param {{index: number, count: number}} place among its siblings
   * @param {Answer} [answer] while it arrives
   */
  constructor(message, actions, place, answer) {
    this.message = message;
    this.actions = actions;
    this.isAnswer = message.role === "assistant";
    this.provenance = answer?.provenance ?? new Provenance(message.provenance);
    this.version = answer?.version ?? 0;
    this.text = h("div", { class: "text" });
    this.reasoning = h("div", { class: "text" });
    this.reasoningBox = h("details", { class: "reasoning", hidden: true }, h("summary", {}, words.reasoning), this.reasoning);
    this.calls = h("div", { class: "calls" });
    this.note = h("p", { class: "note", hidden: true });
    this.line = h("span", {});
    this.model = h("span", { class: "model" });
    this.details = h("dl", {});
    this.facts = h("details", { class: "facts", hidden: true, ontoggle: () => this.facts.open && showDetails(this.details, message, this.provenance) }, h("summary", {}, this.model, this.line), this.details);
    this.bar = h("div", { class: "actions" });
    this.body = h("div", {
      class: "body",
      ...(this.isAnswer && { tabindex: "0", role: "group", "aria-label": words.answerKeys }),
    }, this.reasoningBox, this.text, this.calls);
    this.element = h(
      "article",
      { class: `message ${message.role}`, "aria-label": this.isAnswer ? words.answer : words.you },
      !this.isAnswer && h("div", { class: "chips" }, chips(message.attachments)),
      this.body, this.note, h("footer", {}, this.isAnswer && this.facts, this.bar),
    );
    this.later = 0; // timer of the rest of a long text
    this.markdown = new MarkdownView(this.text);
    this.reasoningMarkdown = new MarkdownView(this.reasoning);
    this.tint = new Tint(this.provenance, this.body);
    if (this.isAnswer) this.body.addEventListener("keydown", (/** @type {any} */ event) => walk(event, this.tint));
    this.showActions(place);
    this.update(answer);
  }

  /** Show what the message holds now. @param {Answer} [answer] while it arrives */
  update(answer) {
    const { message } = this;
    if (!this.isAnswer) {
      this.body.hidden = !message.content;
      void showPlain(this.text, message.content);
      return;
    }
    if (answer && answer.version !== this.version) {
      this.version = answer.version; // it is shown from its first character on
      this.tint.reset();
      fill(this.text);
      fill(this.reasoning);
      this.markdown = new MarkdownView(this.text);
      this.reasoningMarkdown = new MarkdownView(this.reasoning);
    }
    const isOver = message.state !== "running";
    this.reasoningBox.hidden = !message.reasoning;
    let isShown = !message.reasoning || this.reasoningMarkdown.update(message.reasoning, isOver || message.content !== "");
    isShown &&= this.markdown.update(message.content, isOver);
    this.showCalls();
    this.showNote(answer);
    // reasoning is written first, so it is looked for first
    this.tint.update(
      [...this.reasoningMarkdown.blocks, ...this.markdown.blocks, this.calls],
      isOver && isShown ? this.reasoningMarkdown.blocks.length + this.markdown.blocks.length + 1 : this.numSettled(),
    );
    clearTimeout(this.later);
    this.later = isShown ? 0 : setTimeout(() => this.update(answer), LATER);
    const line = summary(message, this.provenance, answer?.speed ?? 0);
    if (this.line.textContent !== line) this.line.textContent = line;
    if (message.model && !this.model.textContent) this.model.textContent = `${message.model} · `;
    this.facts.hidden = !line;
    if (this.facts.open) showDetails(this.details, message, this.provenance);
    this.element.classList.toggle("running", !isOver || !isShown);
    this.element.classList.toggle("empty", !isOver && !message.content && !message.reasoning);
  }

  /** Blocks that will not change; those of the text count once the reasoning is over. */
  numSettled() {
    const { numSettled, blocks } = this.reasoningMarkdown;
    return numSettled < blocks.length ? numSettled : numSettled + this.markdown.numSettled;
  }

  showCalls() {
    const { toolCalls: calls = [], state } = this.message;
    if (!calls.length) return;
    const canRun = state === "done" && calls.some((call) => call.result === undefined);
    const result = (/** @type {string} */ text) => h("details", { "data-not-model-text": true }, h("summary", {}, words.result), h("pre", { tabindex: "0" }, text));
    fill(
      this.calls,
      calls.map((call) => h("div", { class: "call" }, h("div", { class: "code-head", "data-not-model-text": true }, words.callsTool), h("p", {}, h("code", {}, call.name)), h("pre", { tabindex: "0" }, h("code", {}, call.arguments)), call.result !== undefined && result(call.result))),
      canRun && h("button", { type: "button", class: "small", "data-not-model-text": true, disabled: calling.has(this.message.id), onclick: () => this.actions.runCalls(this.message) }, words.run),
    );
  }

  /** @param {Answer} [answer] */
  showNote(answer) {
    const { state, failure, finish } = this.message;
    const progress = state === "running" ? answer?.progress : null;
    const text =
      progress && progress.processed < progress.total
        ? words.processing(percent(progress.processed / progress.total), number(progress.total))
        : failure || (state === "stopped" ? words.stopped : finish === "length" ? words.cutOff : "");
    this.note.textContent = text;
    this.note.hidden = !text;
    this.note.classList.toggle("problem", state === "failed");
  }

  /** @param {{index: number, count: number}} place */
  showActions({ index, count }) {
    const { message, actions } = this;
    const branches = count > 1 && [
      iconButton("left", words.earlier, () => actions.branch(message, -1), { disabled: index === 0 }),
      h("span", { class: "count" }, `${index + 1} / ${count}`),
      iconButton("right", words.later, () => actions.branch(message, 1), { disabled: index === count - 1 }),
    ];
    const isCutOff = message.state === "stopped" || message.state === "failed" || message.finish === "length";
    fill(
      this.bar,
      branches,
      iconButton("copy", words.copy, () => copyText(message.content)),
      this.isAnswer
        ? [
            iconButton("retry", words.retry, () => actions.regenerate(message)),
            iconButton("compare", words.compareThis, () => actions.compare(message)),
            isCutOff && message.content && iconButton("forward", words.proceed, () => actions.proceed(message)),
          ]
        : iconButton("edit", words.edit, () => this.startEditing()),
      iconButton("trash", words.delete, () => confirm(words.reallyDeleteMessage) && actions.remove(message)),
    );
  }

  startEditing() {
    const { message, actions } = this;
    const area = h("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1), "aria-label": words.yourMessage });
    const end = () => {
      this.bar.hidden = false;
      this.update();
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
          if (event.isComposing) return;
          if (event.key === "Escape") {
            event.preventDefault(); // it stops no answer
            end();
          }
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) actions.edit(message, area.value);
        },
      },
      area,
      h("div", { class: "row" }, h("button", { type: "button", class: "quiet", onclick: end }, words.cancel), h("button", { class: "primary" }, words.askAgain)),
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
