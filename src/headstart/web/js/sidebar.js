/** The list of conversations: search, open, rename, export, delete. */

import { byId, fill, h, iconButton } from "./dom.js";
import { openMenu } from "./menu.js";
import { search } from "./store.js";
import { words } from "./words.js";

/** @typedef {import("./store.js").Conversation} Conversation */

/**
 * @typedef {object} Actions
 * @property {(id: string) => void} open
 * @property {(conversation: Conversation, title: string) => void} rename
 * @property {(conversation: Conversation) => void} keep as a file
 * @property {(conversation: Conversation) => void} remove
 */

export class Sidebar {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {Conversation[]} */
    this.conversations = [];
    this.current = "";
    /** @type {Set<string> | null} ids that were found; null: nothing is looked for */
    this.found = null;
    const field = byId("search");
    field.addEventListener("input", async () => {
      const wanted = field.value.trim();
      const found = wanted ? await search(wanted) : null;
      if (field.value.trim() !== wanted) return; // the user wrote on meanwhile
      for (const { id, title } of this.conversations) if (title.toLowerCase().includes(wanted.toLowerCase())) found?.add(id);
      this.found = found;
      this.draw();
    });
    byId("menu").addEventListener("click", () => toggleSidebar());
    byId("veil").addEventListener("click", () => toggleSidebar(false));
  }

  /**
   * @param {Conversation[]} conversations
   * @param {string} current id
   */
  show(conversations, current) {
    this.conversations = conversations;
    this.current = current;
    this.draw();
  }

  draw() {
    const shown = this.conversations.filter(({ id }) => !this.found || this.found.has(id));
    fill(byId("conversations"), shown.length || !this.found ? shown.map((one) => this.row(one)) : h("li", { class: "hint" }, words.nothingFound));
  }

  /** @param {Conversation} one */
  row(one) {
    const { open, keep, remove } = this.actions;
    const isCurrent = one.id === this.current;
    const more = iconButton("more", words.more(one.title), () =>
      openMenu(more, [
        [words.rename, () => this.edit(row, one)],
        [words.exportOne, () => keep(one)],
        [words.delete, () => confirm(words.reallyDelete(one.title)) && remove(one)],
      ]),
    );
    more.setAttribute("aria-haspopup", "menu");
    const title = h("button", { type: "button", class: "title", "aria-current": isCurrent ? "true" : null, onclick: () => open(one.id) }, one.title);
    const row = h("li", { class: isCurrent && "current" }, title, one.running && h("span", { class: "pulse" }), more);
    return row;
  }

  /**
   * @param {HTMLElement} row
   * @param {Conversation} one
   */
  edit(row, one) {
    let isOver = false;
    const end = (/** @type {boolean} */ isKept) => {
      if (isOver) return;
      isOver = true;
      const title = field.value.trim();
      if (isKept && title) this.actions.rename(one, title);
      else this.draw();
    };
    const field = h("input", {
      type: "text", value: one.title, "aria-label": words.titleName,
      onblur: () => end(true),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        event.stopPropagation();
        if (event.isComposing) return;
        if (event.key === "Enter") end(true);
        if (event.key === "Escape") end(false);
      },
    });
    fill(row, field);
    field.select();
  }
}

/** The drawer that the sidebar is on a small window. @param {boolean} [isOpen] */
export function toggleSidebar(isOpen) {
  const open = document.body.classList.toggle("sidebar-open", isOpen);
  byId("menu").setAttribute("aria-expanded", String(open));
}
