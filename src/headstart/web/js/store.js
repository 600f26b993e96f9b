/** Conversations in the browser's own database; the server keeps none of them. */

import { nextTask } from "./frames.js";
import { packProvenance, unpackProvenance } from "./packing.js";

/** @typedef {import("./tree.js").Message} Message */

/**
 * @typedef {object} Conversation
 * @property {string} id
 * @property {string} title
 * @property {number} updated milliseconds since 1970
 * @property {string | null} leaf the message that is shown last
 * @property {string} system prompt
 * @property {Record<string, string>} settings of its requests, as the user wrote them
 * @property {string | null} running the answer that is being written
 * @property {{text: string, attachments: import("./tree.js").Attachment[]} | null} queued what is sent next
 */

/** @type {Promise<IDBDatabase> | null} */
let opening = null;
/** @type {IDBDatabase | null} once it is open, so that a page that is being left can write at once */
let opened = null;

function open() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("headstart", 1);
    request.onupgradeneeded = () => {
      const database = request.result;
      database.createObjectStore("conversations", { keyPath: "id" });
      database.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    request.onsuccess = () => resolve((opened = request.result));
    request.onerror = () => reject(request.error);
  });
  return opening;
}

/**
 * @template T
 * @param {IDBTransactionMode} mode
 * @param {(conversations: IDBObjectStore, messages: IDBObjectStore) => IDBRequest<T> | void} act
 * @returns {Promise<T | undefined>} once it is written
 */
async function within(mode, act) {
  const database = opened ?? (await open());
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(["conversations", "messages"], mode);
    const request = act(transaction.objectStore("conversations"), transaction.objectStore("messages"));
    transaction.oncomplete = () => resolve(request ? request.result : undefined);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** All conversations, newest first. @returns {Promise<Conversation[]>} */
export async function listConversations() {
  const all = /** @type {Conversation[]} */ (await within("readonly", (conversations) => conversations.getAll()));
  return all.sort((one, other) => other.updated - one.updated);
}

/** @param {string} id @returns {Promise<Map<string, Message>>} */
export async function loadMessages(id) {
  const all = /** @type {Message[]} */ (
    await within("readonly", (_, messages) => messages.index("conversation").getAll(id))
  );
  return new Map(all.map((message) => [message.id, unpacked(message)]));
}

/** @param {Conversation} conversation @param {Message[]} list messages of it that change with it */
export async function saveConversation(conversation, ...list) {
  await within("readwrite", (conversations, messages) => {
    conversations.put(conversation);
    for (const message of list) messages.put(packed(message));
  });
}

/**
 * Say that a conversation's answer is over. Of several tabs that follow it, only the first gets what is sent next.
 * @param {Conversation} conversation
 * @param {string} id of the answer
 * @returns {Promise<Conversation["queued"]>}
 */
export async function endRunning(conversation, id) {
  /** @type {Conversation["queued"]} */
  let queued = null;
  await within("readwrite", (conversations) => {
    const request = conversations.get(conversation.id);
    request.onsuccess = () => {
      if (request.result?.running !== id) return; // another tab was first
      queued = request.result.queued;
      conversations.put({ ...conversation, running: null, queued: null });
    };
  });
  return queued;
}

/** @param {Message[]} list */
export async function saveMessages(...list) {
  await within("readwrite", (_, messages) => void list.forEach((message) => messages.put(packed(message))));
}

/** Write a long answer without holding up the page. @param {Message} message */
export async function saveLongMessage({ provenance, ...rest }) {
  if (!provenance) return saveMessages(rest);
  const parts = await packProvenance(provenance, nextTask);
  await within("readwrite", (_, messages) => void messages.put({ ...rest, provenance: parts }));
}

/** As text, provenance is written five times as fast: a database copies objects one by one. @param {Message} message */
function packed({ provenance, ...rest }) {
  return provenance ? { ...rest, provenance: JSON.stringify(provenance) } : rest;
}

/** @param {any} stored @returns {Message} */
function unpacked({ provenance, ...rest }) {
  return provenance ? { ...rest, provenance: unpackProvenance(provenance) } : rest;
}

/** @param {Iterable<string>} ids */
export async function deleteMessages(ids) {
  await within("readwrite", (_, messages) => {
    for (const id of ids) messages.delete(id);
  });
}

/** @param {string} id */
export async function deleteConversation(id) {
  await within("readwrite", (conversations, messages) => {
    conversations.delete(id);
    const keys = messages.index("conversation").getAllKeys(id);
    keys.onsuccess = () => keys.result.forEach((key) => messages.delete(key));
  });
}

/** Conversations in which a text was written. @param {string} wanted @returns {Promise<Set<string>>} ids */
export async function search(wanted) {
  const found = new Set();
  const lower = wanted.toLowerCase();
  await within("readonly", (_, messages) => {
    const request = messages.openCursor();
    request.onsuccess = () => {
      const cursor = request.result;
      if (!cursor) return;
      const { content, conversation } = cursor.value;
      if (content.toLowerCase().includes(lower)) found.add(conversation);
      cursor.continue();
    };
  });
  return found;
}
