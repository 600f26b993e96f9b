/** Conversations as a file: export, and import with every field checked. Pure. */

import { newId, pathTo } from "./tree.js";
import { words } from "./words.js";

const FORMAT = "headstart-conversations";

/**
 * @param {{conversation: import("./store.js").Conversation, messages: import("./tree.js").Message[]}[]} list
 * @returns {string}
 */
export function exportText(list) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations: list }, null, 1);
}

/**
 * The shown path of a conversation, to read elsewhere.
 * @param {import("./store.js").Conversation} conversation
 * @param {import("./tree.js").Tree} tree
 */
export function asMarkdown({ title, leaf, system }, tree) {
  const parts = pathTo(tree, leaf).map(({ role, model, content, attachments = [] }) => {
    const files = attachments.map(({ name }) => `*${name}*\n\n`).join("");
    return `## ${role === "user" ? words.you : model || words.answer}\n\n${files}${content.trim()}`;
  });
  return [`# ${title}`, system && `> ${system.trim().replaceAll("\n", "\n> ")}`, ...parts].filter(Boolean).join("\n\n") + "\n";
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
    throw new Error(words.notJson);
  }
  if (data?.format !== FORMAT || !Array.isArray(data.conversations))
    throw new Error(words.notOurs);
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
      title: typeof title === "string" && title ? title : words.importedTitle,
      updated: Number(updated) || 0,
      leaf,
      system: typeof system === "string" ? system : "",
      settings: {},
      running: null,
      queued: null,
    },
    messages,
  };
}
