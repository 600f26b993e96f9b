/** Conversations in the browser's own database; nothing of them is kept on the server. */

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

/** @param {Conversation} conversation */
export async function saveConversation(conversation) {
  await within("readwrite", (conversations) => void conversations.put(conversation));
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

/** @param {string} id */
export async function deleteConversation(id) {
  const tree = await loadMessages(id);
  await within("readwrite", (conversations, messages) => {
    conversations.delete(id);
    for (const message of tree.keys()) messages.delete(message);
  });
}
