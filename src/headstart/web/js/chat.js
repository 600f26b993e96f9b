/** The chat: the conversation that is open, its branches, and the answer that is running. */

import { Answer, run } from "./answer.js";
import { ApiError } from "./api.js";
import { Composer } from "./composer.js";
import { announce, byId, fill, h, toast } from "./dom.js";
import { nextTask, paced } from "./frames.js";
import { inspect } from "./inspector.js";
import { MessageView } from "./message.js";
import { bodyOf, loadSettings } from "./settings.js";
import { showConversations, toggleSidebar } from "./sidebar.js";
import * as store from "./store.js";
import { leafBelow, newId, pathTo, siblings, titleOf, toMessages } from "./tree.js";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {import("./store.js").Conversation} Conversation */

const SAVE_PAUSE = 300; // milliseconds between two writes of a running answer
const MOST_TOKENS_SAVED_OFTEN = 2000; // writing the provenance of more takes longer than a frame
const SCROLLING_KEYS = ["ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End", " "];
const NEAR_THE_END = 80; // pixels; who scrolled further up is left in peace

export class Chat {
  /**
   * @param {{compare: (messages: any[]) => void, plainSteps: import("./plain-steps.js").PlainSteps, suggestions: () => string[]}} links
   *     to the other parts of the page
   */
  constructor(links) {
    this.links = links;
    this.thread = byId("thread");
    this.scroller = byId("scroller");
    /** @type {Conversation} */
    this.conversation = emptyConversation();
    /** @type {Map<string, Message>} */
    this.tree = new Map();
    /** @type {Map<string, MessageView>} */
    this.views = new Map();
    /** @type {AbortController | null} */
    this.running = null;
    this.composer = new Composer({ send: (text) => this.ask(text, this.conversation.leaf), stop: () => this.stop() });
    /** @type {import("./message.js").Actions} */
    this.actions = {
      regenerate: (message) => this.answer(message.parent),
      edit: (message, text) => this.ask(text, message.parent),
      branch: (message, step) => this.branch(message, step),
      compare: (message) => this.links.compare(this.messagesBefore(message)),
      proceed: (message) => this.proceed(message),
    };
    inspect(this.scroller);
    this.follow();
  }

  /** Stay at the end as the thread grows, unless the user scrolls up. */
  follow() {
    this.isFollowing = true;
    let isActing = false; // the user scrolls; the thread moves of itself too, as heights become known
    const act = (/** @type {any} */ event) => {
      isActing ||= !(event instanceof KeyboardEvent) ? event.type !== "pointerdown" || event.target === this.scroller : SCROLLING_KEYS.includes(event.key);
    };
    for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) this.scroller.addEventListener(kind, act, { passive: true });
    this.scroller.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = this.scroller;
      if (scrollHeight - scrollTop - clientHeight < NEAR_THE_END) {
        this.isFollowing = true;
        isActing = false;
      } else if (isActing) this.isFollowing = false;
    });
    // behind the layout of a frame, where asking for heights costs nothing
    const observer = new ResizeObserver(() => this.isFollowing && this.scrollToEnd());
    observer.observe(this.thread);
    observer.observe(this.scroller);
  }

  /** Open the newest conversation, or a new one. */
  async start() {
    const [newest] = await store.listConversations();
    await this.open(newest?.id ?? null);
  }

  /** @param {string | null} id null: a new one */
  async open(id) {
    this.stop();
    const found = (await store.listConversations()).find((one) => one.id === id);
    this.conversation = found ?? emptyConversation();
    this.tree = found ? await store.loadMessages(found.id) : new Map();
    for (const message of this.tree.values()) {
      // the page was closed or loaded again while it ran
      if (message.state === "running") message.state = "stopped";
    }
    for (const view of this.views.values()) view.remove();
    this.views.clear();
    this.show();
    await this.refreshList();
    toggleSidebar(false);
    this.composer.focus();
    this.scrollToEnd();
  }

  async refreshList() {
    showConversations(await store.listConversations(), this.conversation.id, {
      open: (id) => this.open(id),
      remove: async (conversation) => {
        if (!confirm(`Delete "${conversation.title}"?`)) return;
        await store.deleteConversation(conversation.id);
        if (conversation.id === this.conversation.id) await this.start();
        else await this.refreshList();
      },
    });
  }

  /** @param {string} system */
  async setSystem(system) {
    this.conversation.system = system;
    if (this.tree.size) await store.saveConversation(this.conversation);
  }

  /** Put the path to the leaf on the page; views that stay are kept. */
  show() {
    const path = pathTo(this.tree, this.conversation.leaf);
    const wanted = new Set(path.map((message) => message.id));
    for (const [id, view] of this.views) {
      if (!wanted.has(id)) {
        view.remove();
        this.views.delete(id);
      }
    }
    const elements = path.map((message) => {
      const all = siblings(this.tree, message);
      const place = { index: all.indexOf(message), count: all.length };
      let view = this.views.get(message.id);
      if (view) view.showActions(place);
      else {
        view = new MessageView(message, this.actions, place);
        this.views.set(message.id, view);
      }
      return view.element;
    });
    elements.forEach((element, i) => {
      if (this.thread.children[i] !== element) this.thread.insertBefore(element, this.thread.children[i] ?? null);
    });
    byId("welcome").hidden = path.length > 0;
    if (!path.length) this.showSuggestions();
  }

  showSuggestions() {
    fill(
      byId("suggestions"),
      this.links.suggestions().map((text) => h("button", { type: "button", class: "suggestion", onclick: () => this.ask(text, null) }, text)),
    );
  }

  /**
   * The user says something below a message.
   * @param {string} text
   * @param {string | null} parent
   */
  async ask(text, parent) {
    if (this.running) return;
    if (!this.tree.size) this.conversation.title = titleOf(text);
    const message = this.newMessage(parent, "user", text);
    await store.saveMessages(message);
    await this.answer(message.id);
  }

  /** @param {string | null} parent the message to answer */
  async answer(parent) {
    if (this.running || !parent) return;
    const message = this.newMessage(parent, "assistant", "");
    await this.generate(message, new Answer(), this.messagesBefore(message));
  }

  /** Go on with an answer that was cut off, in a version of its own. @param {Message} cut */
  async proceed(cut) {
    if (this.running) return;
    const message = this.newMessage(cut.parent, "assistant", cut.content);
    const answer = new Answer();
    answer.content = cut.content;
    if (cut.provenance) answer.provenance.add(cut.provenance);
    await this.generate(message, answer, [...this.messagesBefore(cut), { role: "assistant", content: cut.content }]);
  }

  /**
   * @param {Message} message
   * @param {Answer} answer
   * @param {any[]} messages
   */
  async generate(message, answer, messages) {
    message.state = "running";
    message.provenance = answer.provenance.data;
    this.conversation.leaf = message.id;
    this.conversation.updated = Date.now();
    await store.saveConversation(this.conversation);
    this.show();
    await this.refreshList();
    const view = /** @type {MessageView} */ (this.views.get(message.id));
    view.provenance = view.tint.provenance = answer.provenance;
    const running = (this.running = new AbortController());
    this.composer.setRunning(true);
    this.scrollToEnd();
    let saving = 0;
    const save = () => {
      clearTimeout(saving);
      saving = 0;
      const isLong = answer.provenance.starts.length > MOST_TOKENS_SAVED_OFTEN;
      const { provenance, ...rest } = copyAnswer(message, answer);
      store.saveMessages(isLong ? rest : { ...rest, provenance }).catch(() => {});
    };
    save();
    addEventListener("pagehide", save);
    const draw = paced(() => this.draw(view, message, answer));
    try {
      await run({ messages, ...bodyOf(loadSettings()) }, answer, running.signal, () => {
        draw.ask();
        saving ||= setTimeout(save, SAVE_PAUSE);
      });
      message.state = "done";
    } catch (error) {
      message.state = running.signal.aborted ? "stopped" : "failed";
      if (message.state === "failed") message.failure = failureText(error);
    }
    clearTimeout(saving);
    if (this.running === running) this.running = null;
    this.links.plainSteps.add(answer.provenance.data);
    draw.flush();
    const isLong = answer.provenance.starts.length > MOST_TOKENS_SAVED_OFTEN;
    if (isLong) await nextTask();
    await (isLong ? store.saveLongMessage : store.saveMessages)(copyAnswer(message, answer)).catch((error) => toast(`The conversation could not be kept: ${error.message}`));
    removeEventListener("pagehide", save);
    if (!this.running) this.composer.setRunning(false);
    this.show();
    announce(message.state === "done" ? `Answer: ${message.content.slice(0, 400)}` : message.failure ?? "Stopped");
  }

  /**
   * @param {MessageView} view
   * @param {Message} message
   * @param {Answer} answer
   */
  draw(view, message, answer) {
    copyAnswer(message, answer);
    if (!this.views.has(message.id)) return; // another conversation is open
    view.update(answer, this.links.plainSteps.mean);
  }

  stop() {
    this.running?.abort();
    this.running = null;
  }

  /**
   * @param {Message} message
   * @param {number} step
   */
  branch(message, step) {
    if (this.running) return;
    const all = siblings(this.tree, message);
    const other = all[all.indexOf(message) + step];
    if (!other) return;
    this.conversation.leaf = leafBelow(this.tree, other.id);
    this.show();
    store.saveConversation(this.conversation);
  }

  /** What the API gets to answer a message's place anew. @param {Message} message */
  messagesBefore(message) {
    return toMessages(pathTo(this.tree, message.parent), this.conversation.system);
  }

  /**
   * @param {string | null} parent
   * @param {"user" | "assistant"} role
   * @param {string} content
   */
  newMessage(parent, role, content) {
    /** @type {Message} */
    const message = { id: newId(), conversation: this.conversation.id, parent, role, content, created: Date.now() };
    this.tree.set(message.id, message);
    return message;
  }

  scrollToEnd() {
    this.isFollowing = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}

/**
 * @param {Message} message
 * @param {Answer} answer
 */
function copyAnswer(message, answer) {
  message.content = answer.content;
  message.reasoning = answer.reasoning || undefined;
  message.toolCalls = answer.toolCalls.length ? answer.toolCalls : undefined;
  message.provenance = answer.provenance.data;
  message.finish = answer.finish;
  message.timings = answer.timings;
  message.metrics = answer.metrics;
  return message;
}

/** @param {unknown} error */
function failureText(error) {
  if (error instanceof ApiError) return error.message;
  return `The answer broke off: ${error instanceof Error ? error.message : error}. Is the server still running?`;
}

/** @returns {Conversation} */
function emptyConversation() {
  return { id: newId(), title: "New conversation", updated: Date.now(), leaf: null, system: "" };
}
