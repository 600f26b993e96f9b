/** Where the user writes: keyboard, growing field, text files dragged in or attached. */

import { byId, toast } from "./dom.js";

/** Larger files would not fit most contexts. */
const MOST_BYTES = 2_000_000;

export class Composer {
  /** @param {{send: (text: string) => void, stop: () => void}} actions */
  constructor({ send, stop }) {
    this.area = byId("prompt");
    this.button = byId("send");
    this.stopButton = byId("stop");
    const submit = () => {
      const text = this.area.value.trim();
      if (!text || !this.stopButton.hidden) return;
      this.area.value = "";
      this.grow();
      send(text);
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
    this.button.hidden = isRunning;
  }

  grow() {
    this.area.style.height = "auto";
    this.area.style.height = `${Math.min(this.area.scrollHeight, innerHeight * 0.4)}px`;
  }

  focus() {
    if (!isTouch()) this.area.focus();
  }

  takeFiles() {
    const chooser = byId("file");
    byId("attach").addEventListener("click", () => chooser.click());
    chooser.addEventListener("change", () => {
      this.insert([...chooser.files]);
      chooser.value = "";
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
    zone.addEventListener("drop", (/** @type {DragEvent} */ event) => {
      zone.classList.remove("dropping");
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.insert([...event.dataTransfer.files]);
    });
  }

  /** Put text files into the message, each in a fence with its name. @param {File[]} files */
  async insert(files) {
    for (const file of files) {
      if (file.size > MOST_BYTES) {
        toast(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB, but at most ${MOST_BYTES / 1e6} MB are taken`);
        continue;
      }
      const text = await file.text();
      if (text.includes("\0") || text.includes("\ufffd")) {
        toast(`${file.name} is not a text file`);
        continue;
      }
      this.area.value = `${this.area.value}${this.area.value ? "\n\n" : ""}${fenced(file.name, text)}\n`;
    }
    this.grow();
    this.focus();
  }
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

function isTouch() {
  return matchMedia("(pointer: coarse)").matches;
}
