/** Where the user writes: keyboard, growing field, files, what is sent next, how full the context is. */

import { Attachments } from "./attachments.js";
import { byId, fill, h, iconButton } from "./dom.js";
import { number } from "./format.js";
import { words } from "./words.js";

/** @typedef {{text: string, attachments: import("./tree.js").Attachment[]}} Said */

export class Composer {
  /**
   * @param {import("./server.js").Server} server
   * @param {{send: (said: Said) => void, stop: () => void, unqueue: () => void}} actions
   */
  constructor(server, { send, stop, unqueue }) {
    this.area = byId("prompt");
    this.stopButton = byId("stop");
    this.attachments = new Attachments(byId("attachments"), server);
    this.unqueue = unqueue;
    const submit = () => {
      const text = this.area.value.trim();
      if (!text && !this.attachments.list.length) return;
      this.area.value = "";
      this.grow();
      send({ text, attachments: this.attachments.takeAll() });
    };
    byId("composer").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      submit();
    });
    this.stopButton.addEventListener("click", stop);
    this.area.addEventListener("input", () => this.grow());
    this.area.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouch()) {
        event.preventDefault();
        submit();
      }
    });
    this.takeFiles();
  }

  /** @param {boolean} isRunning */
  setRunning(isRunning) {
    this.stopButton.hidden = !isRunning;
  }

  /** Show what is sent when the answer is over. @param {Said | null} queued */
  showQueued(queued) {
    const box = byId("queued");
    box.hidden = !queued;
    fill(box, queued && [h("span", { class: "hint" }, words.queued), h("span", { class: "name" }, queued.text || queued.attachments.map((one) => one.name).join(", ")), iconButton("close", words.unqueue, this.unqueue)]);
  }

  /** Put something back into the field, in front of what is there. @param {Said} said */
  putBack({ text, attachments }) {
    this.area.value = [text, this.area.value].filter(Boolean).join("\n\n");
    this.attachments.list.unshift(...attachments);
    this.attachments.draw();
    this.grow();
  }

  /**
   * @param {number} used tokens of the conversation; 0: not known
   * @param {number} size
   */
  showContext(used, size) {
    const box = byId("context");
    box.hidden = !used || !size;
    if (box.hidden) return; // the first number that is formatted takes long: not while the page loads
    box.textContent = words.context(number(used), number(size));
    box.title = words.contextTitle(number(used), number(size));
    box.classList.toggle("problem", used > 0.9 * size);
  }

  grow() {
    this.area.style.height = "auto";
    if (this.area.value) this.area.style.height = `${Math.min(this.area.scrollHeight, innerHeight * 0.4)}px`;
  }

  focus() {
    if (!isTouch()) this.area.focus();
  }

  takeFiles() {
    const chooser = byId("file");
    byId("attach").addEventListener("click", () => chooser.click());
    chooser.addEventListener("change", async () => {
      await this.attachments.add([...chooser.files]);
      chooser.value = "";
    });
    this.area.addEventListener("paste", (/** @type {ClipboardEvent} */ event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      this.attachments.add(files);
    });
    const zone = byId("chat");
    zone.addEventListener("dragover", (/** @type {DragEvent} */ event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      zone.classList.add("dropping");
    });
    zone.addEventListener("dragleave", (/** @type {DragEvent} */ event) => {
      if (!zone.contains(/** @type {Node | null} */ (event.relatedTarget))) zone.classList.remove("dropping");
    });
    zone.addEventListener("drop", async (/** @type {DragEvent} */ event) => {
      zone.classList.remove("dropping");
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      await this.attachments.add([...event.dataTransfer.files]);
      this.focus();
    });
  }
}

function isTouch() {
  return matchMedia("(pointer: coarse)").matches;
}
