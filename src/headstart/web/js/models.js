/** The choice of a router's models, with what each is doing. A server of one model shows its name. */

import { getJson, stream } from "./api.js";
import { byId, toast } from "./dom.js";
import { words } from "./words.js";

const CHOSEN = "headstart-model";

export class ModelList {
  /**
   * @param {(name: string) => void} change called when the user chooses another
   * @param {(text: string) => void} tell how far the chosen one is loaded
   */
  constructor(change, tell) {
    this.tell = tell;
    this.list = byId("models");
    this.isFollowed = false;
    /** @type {Map<string, Map<string, { done: number, total: number }>>} model: files that are downloaded, or loaded */
    this.progress = new Map();
    this.list.addEventListener("focus", () => void this.fill(this.chosen));
    this.list.addEventListener("change", () => {
      localStorage.setItem(CHOSEN, this.chosen);
      change(this.chosen);
    });
  }

  get chosen() {
    return this.list.value;
  }

  /** The name of a server's only model. @param {string} name */
  showOnly(name) {
    byId("model").textContent = this.isFollowed ? "" : name;
  }

  /** Offer a router's models; returns the one that was chosen last, or else one that is loaded. */
  async start() {
    const models = await this.fill(this.chosen || localStorage.getItem(CHOSEN));
    if (!models.length) throw new Error(words.noModels);
    this.list.hidden = false;
    document.body.classList.add("many-models"); // each answer names its own
    if (!this.isFollowed) void this.follow();
    this.isFollowed = true;
    return this.chosen;
  }

  /** Keep the list as the router tells of its models. */
  async follow() {
    try {
      for await (const { event, model, data } of stream("models/sse", null, new AbortController().signal)) {
        const files = event === "download_progress" ? data : data?.progress && { "": { done: data.progress.value, total: 1 } };
        if (files) {
          this.progress.set(model, new Map([...(this.progress.get(model) ?? []), ...Object.entries(files)]));
          const option = [...this.list.options].find(({ value }) => value === model);
          if (option) option.text = this.nameWith(model, data.status ?? "downloading");
          else await this.fill(this.chosen);
          if (model === this.chosen && data.status === "loading") this.tell(this.percentOf(model));
          continue;
        }
        if (event === "download_failed") toast(words.notDownloaded(model, data.message));
        this.progress.delete(model);
        if (model === this.chosen && data?.status === "loaded") this.tell("");
        await this.fill(this.chosen);
      }
    } catch {
      // the router went away; requests say so, and the list is filled again when it gets the focus
    }
  }

  /**
   * A model's name with what it is doing.
   * @param {string} id
   * @param {string} state
   */
  nameWith(id, state) {
    return state === "unloaded" ? id : `${id} (${`${words.states[state] ?? state} ${this.percentOf(id)}`.trim()})`;
  }

  /** How much is there of what is being loaded or downloaded. @param {string} id */
  percentOf(id) {
    const files = [...(this.progress.get(id)?.values() ?? [])];
    const total = files.reduce((sum, file) => sum + file.total, 0);
    const done = files.reduce((sum, file) => sum + file.done, 0);
    return total ? `${Math.floor((100 * done) / total)} %` : "";
  }

  /** @param {string | null} wanted */
  async fill(wanted) {
    /** @type {{ id: string, status: { value: string, failed?: boolean, reason?: string } }[]} */
    const models = (await getJson("models")).data;
    const usable = models.filter(({ status }) => status.value !== "downloading");
    const loaded = usable.find(({ status }) => status.value === "loaded");
    const chosen = usable.find(({ id }) => id === wanted) ?? loaded ?? usable.find(({ status }) => !status.failed) ?? usable[0];
    this.list.replaceChildren(
      ...models.map(({ id, status }) => {
        const state = status.failed ? "failed" : status.value;
        const option = new Option(this.nameWith(id, state), id, false, id === chosen?.id);
        option.title = status.reason ?? "";
        option.disabled = state === "downloading";
        return option;
      }),
    );
    return usable;
  }
}
