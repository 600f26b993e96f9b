/** Conversations as a file: export, and import with every field checked. Pure. */

import { newId } from "./tree.js";

const FORMAT = "headstart-conversations";

/**
 * @param {{conversation: import("./store.js").Conversation, messages: import("./tree.js").Message[]}[]} list
 * @returns {string}
 */
export function exportText(list) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations: list }, null, 1);
}

/**
 * Read an exported file. Ids are new, so nothing that exists is overwritten.
 * @param {string} text
 * @returns {{conversation: import("./store.js").Conversation, messages: import("./tree.js").Message[]}[]}
 */
export function importText(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("this file is not JSON; choose one that Export made");
  }
  if (data?.format !== FORMAT || !Array.isArray(data.conversations))
    throw new Error("this file holds no exported conversations; choose one that Export made");
  return data.conversations.map(readOne);
}

/** @param {any} entry */
function readOne(entry) {
  const id = newId();
  const given = Array.isArray(entry?.messages) ? entry.messages : [];
  /** @type {Map<string, string>} */
  const ids = new Map(given.map((/** @type {any} */ message) => [String(message.id), newId()]));
  const messages = given
    .filter((/** @type {any} */ one) => ["user", "assistant"].includes(one?.role) && typeof one.content === "string")
    .map((/** @type {any} */ one) => ({
      id: ids.get(String(one.id)) ?? newId(),
      conversation: id,
      parent: ids.get(String(one.parent)) ?? null,
      role: one.role,
      content: one.content,
      reasoning: typeof one.reasoning === "string" ? one.reasoning : undefined,
      created: Number(one.created) || 0,
      state: one.role === "assistant" ? /** @type {const} */ ("done") : undefined,
    }));
  const leaf = ids.get(String(entry?.conversation?.leaf)) ?? messages.at(-1)?.id ?? null;
  const { title, updated, system } = entry?.conversation ?? {};
  return {
    conversation: {
      id,
      title: typeof title === "string" && title ? title : "Imported conversation",
      updated: Number(updated) || 0,
      leaf,
      system: typeof system === "string" ? system : "",
    },
    messages,
  };
}
