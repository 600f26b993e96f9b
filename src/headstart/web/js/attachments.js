/** Files beside a message: text files and, where the model takes them, images. */

import { postJson } from "./api.js";
import { fill, h, icon, iconButton, toast } from "./dom.js";
import { number, size } from "./format.js";
import { fenced } from "./tree.js";
import { words } from "./words.js";

/** @typedef {import("./tree.js").Attachment} Attachment */

const MOST_BYTES = 10_000_000;

export class Attachments {
  /**
   * @param {HTMLElement} root
   * @param {import("./server.js").Server} server
   */
  constructor(root, server) {
    this.root = root;
    this.server = server;
    /** @type {Attachment[]} */
    this.list = [];
  }

  /** @param {Iterable<File>} files */
  async add(files) {
    for (const file of files) {
      const problem = file.size > MOST_BYTES ? words.tooLarge(file.name, size(file.size), size(MOST_BYTES)) : await this.take(file);
      if (problem) toast(problem);
    }
    this.draw();
  }

  /** @param {File} file @returns {Promise<string>} what is wrong with it */
  async take(file) {
    if (file.type.startsWith("image/")) {
      if (!this.server.props?.modalities?.vision) return words.noImages(file.name);
      this.list.push({ name: file.name, image: await asDataUrl(file) });
      return "";
    }
    const text = await file.text();
    if (text.includes("\0") || text.includes("\ufffd")) return words.notText(file.name);
    this.list.push({ name: file.name, text });
    return "";
  }

  /** All of them, which are gone from here then. */
  takeAll() {
    const list = this.list;
    this.list = [];
    this.draw();
    return list;
  }

  draw() {
    this.root.hidden = !this.list.length;
    fill(
      this.root,
      this.list.map((one) => {
        const count = h("span", { class: "hint" });
        const show = (/** @type {number} */ tokens) => {
          count.textContent = words.tokensOf(number(tokens));
          count.classList.toggle("problem", tokens > this.server.contextSize);
        };
        if (one.text !== undefined) countTokens(one.name, one.text).then(show, () => {});
        const remove = iconButton("close", words.remove(one.name), () => {
          this.list = this.list.filter((other) => other !== one);
          this.draw();
        });
        return h("span", { class: "chip" }, icon("file"), h("span", { class: "name" }, one.name), count, remove);
      }),
    );
  }
}

/** @param {Attachment[]} [list] that were sent */
export function chips(list = []) {
  return list.map((one) => h("span", { class: "chip" }, icon("file"), h("span", { class: "name" }, one.name)));
}

/** How long a file is for the model. @param {string} name @param {string} text @returns {Promise<number>} */
async function countTokens(name, text) {
  return (await postJson("tokenize", { content: fenced(name, text) })).tokens.length;
}

/** @param {File} file @returns {Promise<string>} */
function asDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
