/** The chat: the conversation that is open, its branches, and what is asked in it. */

import { Answer } from "./answer.js";
import { Composer } from "./composer.js";
import { announce, byId, download, fill, h, toast } from "./dom.js";
import { Follow } from "./follow.js";
import { Generations } from "./generations.js";
import { inspect } from "./inspector.js";
import { MessageView } from "./message.js";
import { bodyOf, newSettings } from "./settings.js";
import { Sidebar, toggleSidebar } from "./sidebar.js";
import * as store from "./store.js";
import { calling, runCall, toolsBody } from "./tools.js";
import { asMarkdown } from "./transfer.js";
import { leafBelow, newId, pathTo, siblings, titleOf, toMessages, withAllBelow } from "./tree.js";
import { words } from "./words.js";

/** @typedef {import("./tree.js").Message} Message */
/** @typedef {import("./store.js").Conversation} Conversation */
/** @typedef {import("./composer.js").Said} Said */
/** @typedef {{conversation: Conversation, tree: Map<string, Message>}} Place the open conversation, or another */

export class Chat {
  /**
   * @param {import("./server.js").Server} server
   * @param {{compare: (messages: any[]) => void, opened: () => void}} links to the other parts of the page
   */
  constructor(server, links) {
    this.server = server;
    this.links = links;
    this.thread = byId("thread");
    const scroller = byId("scroller");
    this.follow = new Follow(scroller, this.thread);
    /** @type {Conversation} */
    this.conversation = emptyConversation();
    /** @type {Map<string, Message>} */
    this.tree = new Map();
    /** @type {Map<string, MessageView>} */
    this.views = new Map();
    /** @type {string | null} the conversation that the user chose last; it may still be loading */
    this.chosen = null;
    this.generations = new Generations(server, (generation) => this.views.get(generation.message.id)?.update(generation.answer), (generation, queued) => this.onEnd(generation, queued));
    this.composer = new Composer(server, {
      send: (said) => this.say(said),
      stop: () => this.stop(),
      unqueue: () => this.queue(null),
    });
    this.sidebar = new Sidebar({
      open: (id) => this.open(id),
      rename: (conversation, title) => this.rename(conversation, title),
      keep: async (one) => download(`${one.title}.md`, asMarkdown(one, await store.loadMessages(one.id)), "text/markdown"),
      remove: (conversation) => this.removeConversation(conversation),
    });
    /** @type {import("./message.js").Actions} */
    this.actions = {
      regenerate: (message) => this.answer(message.parent),
      edit: (message, text) => this.ask({ text, attachments: message.attachments ?? [] }, message.parent),
      branch: (message, step) => this.branch(message, step),
      compare: (message) => this.links.compare(messagesBefore(message, this)),
      proceed: (message) => this.proceed(message),
      remove: (message) => this.removeMessage(message),
      runCalls: (message) => this.runCalls(message),
    };
    inspect(scroller);
    server.onChange(() => {
      this.showSuggestions();
      this.showContext();
    });
  }

  /** Open the newest conversation, or a new one, and follow what was being written. */
  async start() {
    const conversations = await store.listConversations();
    if (!this.tree.size) await this.open(conversations[0]?.id ?? null); // else the user was faster
    for (const one of conversations.filter(({ running }) => running)) void this.resume(one);
  }

  /** @param {Conversation} one whose answer was running when the page was left */
  async resume(one) {
    const conversation = one.id === this.conversation.id ? this.conversation : one;
    const tree = conversation === this.conversation ? this.tree : await store.loadMessages(one.id);
    const message = tree.get(one.running ?? "");
    if (message?.state !== "running") {
      conversation.running = null; // it had ended when the page was left
      return store.saveConversation(conversation);
    }
    const resumed = this.generations.resume(conversation, message, tree.get(message.continues ?? ""));
    this.refresh(message);
    await resumed;
  }

  /** @param {string | null} id null: a new one */
  async open(id) {
    this.chosen = id;
    const found = id === null ? undefined : (await store.listConversations()).find((one) => one.id === id);
    const tree = found ? await store.loadMessages(found.id) : new Map();
    if (this.chosen !== id) return; // the user chose another meanwhile
    const running = this.generations.running.get(id ?? "");
    this.conversation = running?.conversation ?? found ?? emptyConversation();
    this.tree = tree;
    if (running) this.tree.set(running.message.id, running.message);
    for (const view of this.views.values()) view.remove();
    this.views.clear();
    this.show();
    this.links.opened();
    toggleSidebar(false);
    this.composer.focus();
    this.follow.toEnd();
    await this.refreshList();
  }

  async refreshList() {
    this.sidebar.show(await store.listConversations(), this.conversation.id);
  }

  /** Keep what the user changed in the settings of this conversation. */
  async saveSettings() {
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
        view = new MessageView(message, this.actions, place, this.answerOf(message));
        this.views.set(message.id, view);
      }
      return view.element;
    });
    elements.forEach((element, i) => {
      if (this.thread.children[i] !== element) this.thread.insertBefore(element, this.thread.children[i] ?? null);
    });
    byId("welcome").hidden = path.length > 0;
    this.showSuggestions();
    this.composer.setRunning(this.isRunning);
    this.composer.showQueued(this.conversation.queued);
    this.showContext();
  }

  /** @param {Message} message */
  answerOf(message) {
    const running = this.generations.running.get(this.conversation.id);
    return running?.message === message ? running.answer : undefined;
  }

  /** Show a message anew. @param {Message} message */
  refresh(message) {
    this.views.get(message.id)?.remove();
    this.views.delete(message.id);
    if (message.conversation === this.conversation.id) this.show();
  }

  showSuggestions() {
    const isDemo = this.server.props?.target_model.name === "demo-target";
    const texts = !this.server.props ? [] : isDemo ? words.demoSuggestions : words.suggestions;
    fill(byId("suggestions"), texts.map((text) => h("button", { type: "button", class: "suggestion", onclick: () => this.say({ text, attachments: [] }) }, text.split(/\n?```\w*\n?/).map((part, i) => (i % 2 ? h("code", {}, part) : part)))));
  }

  showContext() {
    const last = pathTo(this.tree, this.conversation.leaf).findLast((message) => message.timings);
    const { cache_n = 0, prompt_n = 0, predicted_n = 0 } = last?.timings ?? {};
    this.composer.showContext(cache_n + prompt_n + predicted_n, this.server.contextSize);
  }

  get isRunning() {
    return this.generations.running.has(this.conversation.id);
  }

  /** The user said something at the end: now, or when the answer is over. @param {Said} said */
  say(said) {
    if (!this.isRunning) return this.ask(said, this.conversation.leaf);
    const { text = "", attachments = [] } = this.conversation.queued ?? {};
    return this.queue({ text: [text, said.text].filter(Boolean).join("\n\n"), attachments: [...attachments, ...said.attachments] });
  }

  /** @param {Said | null} said */
  async queue(said) {
    this.conversation.queued = said;
    this.composer.showQueued(said);
    await store.saveConversation(this.conversation);
  }

  /**
   * The user says something below a message.
   * @param {Said} said
   * @param {string | null} parent
   * @param {Place} [at]
   */
  async ask({ text, attachments }, parent, at = this) {
    if (this.generations.running.has(at.conversation.id)) return;
    if (!at.tree.size) at.conversation.title = titleOf(text) || attachments[0]?.name || words.newConversation;
    const message = newMessage(at, parent, "user", text);
    if (attachments.length) message.attachments = attachments;
    keep(store.saveMessages(message)); // nothing is waited for: the user may click or write on at once
    await this.answer(message.id, at);
  }

  /**
   * @param {string | null} parent the message to answer
   * @param {Place} [at]
   */
  async answer(parent, at = this) {
    if (this.generations.running.has(at.conversation.id) || !parent) return;
    const message = newMessage(at, parent, "assistant", "");
    await this.generate(message, new Answer(), messagesBefore(message, at), at);
  }

  /** Go on with an answer that was cut off, in a version of its own. @param {Message} cut */
  async proceed(cut) {
    if (this.isRunning) return;
    const message = newMessage(this, cut.parent, "assistant", cut.content);
    message.continues = cut.id;
    await this.generate(message, new Answer(cut, cut), [...messagesBefore(cut, this), { role: "assistant", content: cut.content }], this);
  }

  /**
   * @param {Message} message
   * @param {Answer} answer
   * @param {any[]} messages
   * @param {Place} at
   */
  async generate(message, answer, messages, { conversation }) {
    conversation.leaf = message.id;
    conversation.updated = Date.now();
    const generated = this.generations.start(conversation, message, answer, { messages, ...bodyOf(conversation.settings), ...toolsBody(this.server.tools, conversation.settings?.tools) });
    if (conversation === this.conversation) {
      this.show();
      this.follow.toEnd();
    }
    await this.refreshList();
    await generated;
  }

  /** @param {import("./generations.js").Generation} generation @param {Promise<Said | null>} taken what is sent next */
  async onEnd({ conversation, message }, taken) {
    void this.server.update();
    const isOpen = conversation.id === this.conversation.id;
    if (isOpen) {
      this.views.get(message.id)?.update();
      this.show();
      announce(message.state === "done" ? words.answered(message.content.slice(0, 400)) : message.failure ?? words.stopped);
    }
    await this.refreshList();
    const queued = await taken; // null: nothing, or another tab sends it
    const isUsed = message.state === "done" || isOpen;
    conversation.queued = isUsed ? null : queued;
    if (isOpen) this.composer.showQueued(null);
    if (!queued) return;
    if (message.state === "done") await this.ask(queued, message.id, isOpen ? this : { conversation, tree: await store.loadMessages(conversation.id) });
    else if (isOpen) this.composer.putBack(queued);
    await store.saveConversation(conversation);
  }

  /** Run what an answer called, and let the model go on. @param {Message} message */
  async runCalls(message) {
    const { id, conversation } = message;
    if (calling.has(id)) return;
    calling.add(id);
    this.views.get(id)?.update();
    for (const call of message.toolCalls ?? []) {
      call.result ??= await runCall(call);
      this.views.get(id)?.update();
    }
    const [all, tree] = await Promise.all([store.listConversations(), store.loadMessages(conversation)]).finally(() => calling.delete(id));
    const found = all.find((one) => one.id === conversation);
    if (!found || !tree.has(id)) return; // it was deleted meanwhile
    keep(store.saveMessages(message));
    const at = this.conversation.id === conversation ? this : { conversation: found, tree };
    at.tree.set(id, message); // in place of the one without results, if it was read anew
    this.refresh(message);
    await this.answer(id, at);
  }

  stop() {
    this.generations.stop(this.conversation.id);
  }

  /**
   * @param {Message} message
   * @param {number} step
   */
  branch(message, step) {
    if (this.isRunning) return;
    const all = siblings(this.tree, message);
    const other = all[all.indexOf(message) + step];
    if (other) this.goTo(leafBelow(this.tree, other.id));
  }

  /** @param {Message} message with all that follows */
  async removeMessage(message) {
    if (this.isRunning) return;
    const { conversation, tree } = this;
    const gone = withAllBelow(tree, message.id);
    for (const id of gone) tree.delete(id);
    const other = siblings(tree, message).at(-1)?.id ?? message.parent;
    this.goTo(other && leafBelow(tree, other));
    keep(store.deleteMessages(gone));
    if (!tree.size) await this.removeConversation(conversation);
  }

  /** @param {string | null} leaf */
  goTo(leaf) {
    this.conversation.leaf = leaf;
    this.show();
    keep(store.saveConversation(this.conversation));
  }

  /** @param {Conversation} conversation @param {string} title */
  async rename(conversation, title) {
    const own = [this.conversation, ...[...this.generations.running.values()].map((one) => one.conversation)].find((one) => one.id === conversation.id);
    if (own) own.title = title;
    await store.saveConversation({ ...(own ?? conversation), title });
    await this.refreshList();
  }

  /** @param {Conversation} conversation */
  async removeConversation(conversation) {
    this.generations.forget(conversation.id);
    if (conversation.id === this.conversation.id) await this.open(null);
    await store.deleteConversation(conversation.id);
    await this.refreshList();
  }
}

/**
 * What the API gets to answer a message's place anew.
 * @param {Message} message
 * @param {Place} place
 */
function messagesBefore(message, { conversation, tree }) {
  return toMessages(pathTo(tree, message.parent), conversation.system);
}

/**
 * @param {Place} place
 * @param {string | null} parent
 * @param {"user" | "assistant"} role
 * @param {string} content
 */
function newMessage({ conversation, tree }, parent, role, content) {
  /** @type {Message} */
  const message = { id: newId(), conversation: conversation.id, parent, role, content, created: Date.now() };
  tree.set(message.id, message);
  return message;
}

/** @param {Promise<void>} saving what was shown already */
function keep(saving) {
  saving.catch((error) => toast(words.notKept(error.message)));
}

/** @returns {Conversation} */
function emptyConversation() {
  return { id: newId(), title: words.newConversation, updated: Date.now(), leaf: null, running: null, queued: null, ...newSettings() };
}
