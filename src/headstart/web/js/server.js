/** The server behind the page: whether it answers, what it says of itself, which model is asked. */

import { getJson, talkTo, whyNotReady } from "./api.js";
import { byId } from "./dom.js";
import { percent } from "./format.js";
import { ModelList } from "./models.js";
import { knowSpeculators } from "./speculators.js";
import { listTools } from "./tools.js";
import { words } from "./words.js";

const PAUSE = 700; // milliseconds between two tries

export class Server {
  constructor() {
    /** @type {any} what /props says of the model; null while it is loaded */
    this.props = null;
    /** @type {import("./tools.js").Tool[]} */
    this.tools = [];
    /** @type {Promise<void> | null} */
    this.waiting = null;
    /** @type {(() => void)[]} called when `props` are new */
    this.listeners = [];
    this.models = new ModelList((name) => this.change(name), (percent) => say(percent && `${words.loadingNamed(this.models.chosen)} ${percent}`));
  }

  /** @param {() => void} listener */
  onChange(listener) {
    this.listeners.push(listener);
  }

  /** Wait until requests can be answered, and learn what the server says of itself. */
  refresh() {
    return (this.waiting ??= this.wait().catch((error) => say(error.message, true)).finally(() => (this.waiting = null)));
  }

  async wait() {
    let props = await getJson("props").catch(() => null); // mostly it answers at once
    while (!props) {
      const reason = await whyNotReady().catch(() => words.noServer);
      if (reason) {
        say(reason === "Loading model" ? words.loadingModel : reason);
        await new Promise((resolve) => setTimeout(resolve, PAUSE));
      } else props = await getJson("props");
    }
    this.tools = await listTools(props);
    if (props.role === "router") await this.change(await this.models.start());
    else this.take(props);
  }

  /** Talk to a model of a router; asking for what it says of itself loads it. @param {string} name */
  async change(name) {
    talkTo(name);
    say(words.loadingNamed(name));
    try {
      const props = await getJson("props");
      if (this.models.chosen === name) this.take(props);
    } catch (error) {
      if (this.models.chosen === name) say(/** @type {Error} */ (error).message, true);
    }
  }

  /** Learn again what a step costs, for instance. */
  async update() {
    const { chosen } = this.models;
    const props = await getJson("props").catch(() => null);
    if (!props || props.role === "router" || this.models.chosen !== chosen) return;
    this.props = props;
    this.showSpeculation();
  }

  /** @param {any} props */
  take(props) {
    this.props = props;
    say(this.has("record_texts") ? words.recorded : "");
    knowSpeculators(props.speculation.types ?? []);
    this.showSpeculation();
    for (const listener of this.listeners) listener();
  }

  showSpeculation() {
    this.models.showOnly(this.props.model_alias);
    const { mode, types = [], unusable, heads } = this.props.speculation;
    const isOff = mode === "off" || unusable || !types.length;
    const draft = this.props.draft_model?.name;
    const { widths, exact_cost: cost } = this.props.speculation.control ?? {};
    const exactness = this.isExact ? words.exact : widths && words.nearTies(widths, cost === null ? words.exactNeedsKernels : words.exactCosts(percent(cost)));
    const facts = [words.mode(mode), draft && words.draftModel(draft), heads && words.heads(heads.num_heads), exactness].filter(Boolean);
    const pill = byId("speculation");
    pill.hidden = false;
    pill.textContent = isOff ? words.speculationOff : words.speculationOn(types.join(", "));
    pill.title = unusable || facts.join("; ");
    pill.classList.toggle("off", Boolean(isOff));
  }

  get isExact() {
    return this.has("exact");
  }

  /** Whether it was started with a setting. @param {string} name */
  has(name) {
    return this.props?.settings?.some((/** @type {any} */ one) => one.name === name && one.value) ?? false;
  }

  get contextSize() {
    return this.props?.default_generation_settings.n_ctx ?? 0;
  }

  /** Milliseconds of a step with one row, as the server learned them. @param {number} context tokens before it */
  baselineMs(context) {
    const cost = this.props?.speculation.control?.cost_ms;
    return cost?.rows?.["1"] ? cost.rows["1"] + (cost.attention * context) / 1000 : undefined;
  }
}

/** @param {string} text @param {boolean} [isProblem] */
function say(text, isProblem = false) {
  const box = byId("status");
  box.textContent = text;
  box.classList.toggle("problem", isProblem);
}
