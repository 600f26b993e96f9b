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

/** @param {any} value @returns {value is string} */
const isText = (value) => typeof value === "string";

/** @param {any} value @returns {any[]} */
const listOf = (value) => (Array.isArray(value) ? value : []);

/** What only some messages have. @param {any} one */
function readExtras({ role, attachments, ...one }) {
  if (role === "user") return { attachments: listOf(attachments).flatMap(readAttachment) };
  const toolCalls = listOf(one.toolCalls).flatMap(readCall);
  const { reasoning, model, finish, failure } = one;
  const texts = Object.fromEntries(Object.entries({ reasoning, model, finish, failure }).filter(([, value]) => isText(value)));
  // a file must not offer a command to run
  const isOver = !["running", "stopped"].includes(one.state) && toolCalls.every(({ result }) => isText(result));
  const state = one.state === "failed" ? one.state : isOver ? "done" : "stopped";
  return { ...texts, toolCalls, state: /** @type {"failed" | "done" | "stopped"} */ (state) };
}

/** @param {any} one @returns {import("./tree.js").Attachment[]} none if it is not one */
function readAttachment(one) {
  const kind = ["text", "image", "audio"].find((name) => isText(one?.[name]));
  if (!kind || !isText(one.name) || (kind !== "text" && !one[kind].startsWith(`data:${kind}/`))) return [];
  return [{ name: one.name, [kind]: one[kind] }];
}

/** @param {any} one @returns {NonNullable<import("./tree.js").Message["toolCalls"]>} none if it is not one */
function readCall(one) {
  if (![one?.id, one?.name, one?.arguments].every(isText)) return [];
  const { id, name, arguments: given, result } = one;
  return [{ id, name, arguments: given, result: isText(result) ? result : undefined }];
}

/** @param {any} entry */
function readOne(entry) {
  const id = newId();
  const given = listOf(entry?.messages);
  /** @type {Map<string, string>} */
  const ids = new Map(given.map((/** @type {any} */ message) => [String(message.id), newId()]));
  const messages = given
    .filter((/** @type {any} */ one) => ["user", "assistant"].includes(one?.role) && typeof one.content === "string")
    .map((/** @type {any} */ one) => ({
      ...readExtras(one),
      id: ids.get(String(one.id)) ?? newId(),
      conversation: id,
      parent: ids.get(String(one.parent)) ?? null,
      role: one.role,
      content: one.content,
      created: Number(one.created) || 0,
    }));
  const leaf = ids.get(String(entry?.conversation?.leaf)) ?? messages.at(-1)?.id ?? null;
  const { title, updated, system, settings } = entry?.conversation ?? {};
  return {
    conversation: {
      id,
      title: typeof title === "string" && title ? title : words.importedTitle,
      updated: Number(updated) || 0,
      leaf,
      system: typeof system === "string" ? system : "",
      settings: Object.fromEntries(Object.entries(Object(settings)).filter(([, value]) => isText(value))),
      running: null,
      queued: null,
    },
    messages,
  };
}
