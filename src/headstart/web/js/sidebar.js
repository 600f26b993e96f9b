/** The list of conversations. */

import { byId, fill, h, iconButton } from "./dom.js";

/** @typedef {import("./store.js").Conversation} Conversation */

/**
 * @param {Conversation[]} conversations
 * @param {string} current id
 * @param {{open: (id: string) => void, remove: (conversation: Conversation) => void}} actions
 */
export function showConversations(conversations, current, { open, remove }) {
  fill(
    byId("conversations"),
    conversations.map((one) =>
      h(
        "li",
        { class: one.id === current ? "current" : "" },
        h("button", { type: "button", class: "title", "aria-current": one.id === current ? "true" : null, onclick: () => open(one.id) }, one.title),
        iconButton("trash", `Delete ${one.title}`, () => remove(one)),
      ),
    ),
  );
}

/** The drawer that the sidebar is on a phone. @param {boolean} [isOpen] */
export function toggleSidebar(isOpen) {
  const open = document.body.classList.toggle("sidebar-open", isOpen);
  byId("menu").setAttribute("aria-expanded", String(open));
}
