/** Files beside a message: text files and, where the model takes them, images and sounds. */

import { postJson } from "./api.js";
import { fill, h, icon, iconButton, toast } from "./dom.js";
import { number, size } from "./format.js";
import { fenced, partOf } from "./tree.js";
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
    /** @type {WeakMap<Attachment, Promise<number>>} */
    this.counts = new WeakMap();
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
    const kind = file.type.split("/")[0];
    if (kind === "image" || kind === "audio") {
      const { vision, audio } = this.server.props?.modalities ?? {};
      if (kind === "image" && !vision) return words.noImages(file.name);
      if (kind === "audio" && !audio) return words.noSounds(file.name);
      this.list.push({ name: file.name, [kind]: await asDataUrl(file) });
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
        const counted = this.counts.get(one) ?? countTokens(one);
        this.counts.set(one, counted);
        counted.then(show, (error) => {
          if (one.text !== undefined) return;
          count.textContent = error.message; // what is wrong with the file
          count.classList.add("problem");
        });
        const remove = iconButton("close", words.remove(one.name), () => {
          this.list = this.list.filter((other) => other !== one);
          this.draw();
        });
        return chip(one, count, remove);
      }),
    );
  }
}

/** @param {Attachment[]} [list] that were sent */
export function chips(list = []) {
  return list.map((one) => chip(one));
}

/** @param {Attachment} one @param {...HTMLElement} more behind its name */
function chip(one, ...more) {
  const { name, image, audio } = one;
  const shown = image ? h("img", { src: image, alt: "" }) : audio ? h("audio", { src: audio, controls: true, "aria-label": name }) : icon("file");
  return h("span", { class: "chip" }, shown, h("span", { class: "name" }, name), more);
}

/** How long a file is for the model. @param {Attachment} one @returns {Promise<number>} */
async function countTokens(one) {
  if (one.text !== undefined) return (await postJson("tokenize", { content: fenced(one.name, one.text) })).tokens.length;
  const [with_, without] = await Promise.all([[partOf(one)], ""].map((content) => postJson("v1/chat/completions/input_tokens", { messages: [{ role: "user", content }] })));
  return with_.input_tokens - without.input_tokens;
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
