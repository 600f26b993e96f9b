/** A conversation is a tree: editing and asking again make branches. Pure. */

/**
 * @typedef {object} Message
 * @property {string} id
 * @property {string} conversation
 * @property {string | null} parent
 * @property {"user" | "assistant"} role
 * @property {string} content
 * @property {string} [reasoning]
 * @property {Attachment[]} [attachments] of what the user says
 * @property {{id: string, name: string, arguments: string, result?: string}[]} [toolCalls]
 * @property {number} created milliseconds since 1970
 * @property {string} [model] that answered
 * @property {number} [firstMs] until the first token
 * @property {number} [baselineMs] what a step without a draft cost then
 * @property {"running" | "done" | "stopped" | "failed"} [state] of an answer
 * @property {string} [continues] id of the answer that was cut off and is its beginning
 * @property {number} [streamed] bytes of its stream that it holds
 * @property {string} [failure]
 * @property {string} [finish] why it ended
 * @property {number} [seed]
 * @property {any} [timings]
 * @property {any} [metrics]
 * @property {Record<string, {mean_acceptance_length: number}> | null} [counterfactual] of each speculator alone
 * @property {import("./provenance.js").ProvenanceData} [provenance]
 */

/** @typedef {Map<string, Message>} Tree */

/** @typedef {{name: string, text?: string, image?: string, audio?: string}} Attachment a text file, or an image or a sound as a data URL */

/**
 * Messages from the first one to a leaf.
 * @param {Tree} tree
 * @param {string | null} leaf
 * @returns {Message[]}
 */
export function pathTo(tree, leaf) {
  /** @type {Message[]} */
  const path = [];
  for (let id = leaf; id; ) {
    const message = tree.get(id);
    if (!message || path.includes(message)) break;
    path.unshift(message);
    id = message.parent;
  }
  return path;
}

/**
 * The messages that stand at the same place as this one, itself included, oldest first.
 * @param {Tree} tree
 * @param {Message} message
 */
export function siblings(tree, message) {
  return [...tree.values()]
    .filter((other) => other.parent === message.parent)
    .sort((one, other) => one.created - other.created || (one.id < other.id ? -1 : 1));
}

/** A message and all below it. @param {Tree} tree @param {string} id @returns {string[]} */
export function withAllBelow(tree, id) {
  const children = [...tree.values()].filter((message) => message.parent === id);
  return [id, ...children.flatMap((child) => withAllBelow(tree, child.id))];
}

/**
 * The newest leaf below a message, or the message itself.
 * @param {Tree} tree
 * @param {string} id
 * @returns {string}
 */
export function leafBelow(tree, id) {
  const children = [...tree.values()].filter((message) => message.parent === id);
  if (!children.length) return id;
  const newest = children.reduce((one, other) => (other.created >= one.created ? other : one));
  return leafBelow(tree, newest.id);
}

/**
 * What the API gets: the system prompt and the path.
 * @param {Message[]} path
 * @param {string} system
 */
export function toMessages(path, system) {
  const head = system.trim() ? [{ role: "system", content: system }] : [];
  return [...head, ...path.flatMap(asSaid)];
}

/** @param {Message} message @returns {any[]} what the API gets of it: tool results too */
function asSaid(message) {
  const said = { role: message.role, content: contentOf(message) };
  const calls = message.toolCalls ?? [];
  if (!calls.length || calls.some((call) => call.result === undefined)) return [said];
  const called = calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } }));
  return [{ ...said, tool_calls: called }, ...calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result }))];
}

/** @param {Message} message */
function contentOf({ content, attachments = [] }) {
  const files = attachments.filter((one) => one.text !== undefined).map((one) => fenced(one.name, one.text ?? ""));
  const text = [...files, content].filter(Boolean).join("\n\n");
  const media = attachments.filter((one) => one.text === undefined).map(partOf);
  return media.length ? [...media, { type: "text", text }] : text;
}

/** An image or a sound as a part of a message. @param {Attachment} one */
export function partOf({ image, audio = "" }) {
  return image ? { type: "image_url", image_url: { url: image } } : { type: "input_audio", input_audio: { data: audio.replace(/^.*,/, "") } };
}

/**
 * A file as Markdown; the fence is longer than any in it.
 * @param {string} name
 * @param {string} text
 */
export function fenced(name, text) {
  const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((ticks) => ticks.length));
  const fence = "`".repeat(longest + 1);
  const language = name.includes(".") ? name.split(".").at(-1) : "";
  return `${name}:\n${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
}

const GREETING = /^(?:(?:hi|hello|hey|dear [^,]*|good (?:morning|evening|day)|hallo|guten (?:tag|morgen|abend)|bitte|please)\b[\s,.!]*)+/i;
const LONGEST_TITLE = 48;

/**
 * What a conversation is about: the first sentence that the user said, without greeting and marks.
 * @param {string} text
 */
export function titleOf(text) {
  const [, code = ""] = text.match(/```\w*\n([^\n]*)/) ?? [];
  const lines = text.replace(/```[^]*?(?:```|$)/g, "").split("\n").map((line) => line.replace(/^[\s>#*-]+|[`*_]/g, "").trim());
  const line = [...lines.map((one) => one.replace(GREETING, "")), ...lines, code.trim()].find(Boolean) ?? "";
  const sentence = (line.match(/^.+?[.?!](?=\s|$)/)?.[0] ?? line).replace(/[\s:.]+$/, "").replace(/\s+/g, " ");
  const title = sentence.charAt(0).toUpperCase() + sentence.slice(1);
  if (title.length <= LONGEST_TITLE) return title;
  return `${title.slice(0, LONGEST_TITLE).replace(/\s+\S*$/, "").slice(0, LONGEST_TITLE - 1)}…`;
}

/** @returns {string} */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}
