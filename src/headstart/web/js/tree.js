/** A conversation is a tree: editing and asking again make branches. Pure. */

/**
 * @typedef {object} Message
 * @property {string} id
 * @property {string} conversation
 * @property {string | null} parent
 * @property {"user" | "assistant"} role
 * @property {string} content
 * @property {string} [reasoning] thoughts
 * @property {any[]} [toolCalls]
 * @property {number} created milliseconds since 1970
 * @property {"running" | "done" | "stopped" | "failed"} [state] of an answer
 * @property {string} [failure]
 * @property {string} [finish] why it ended
 * @property {any} [timings]
 * @property {any} [metrics]
 * @property {import("./provenance.js").ProvenanceData} [provenance]
 */

/** @typedef {Map<string, Message>} Tree */

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
  return [...head, ...path.map(({ role, content }) => ({ role, content }))];
}

/** A title from the first thing that the user said. @param {string} text */
export function titleOf(text) {
  const line = text.trim().split("\n")[0].replaceAll("`", "").replace(/\s+/g, " ");
  return line.length > 48 ? line.slice(0, 47).trimEnd() + "…" : line || "New conversation";
}

/** @returns {string} */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}
