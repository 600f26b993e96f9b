/** The panel with the preset, the system prompt and the settings of the open conversation. */

import { byId, fill, h } from "./dom.js";
import { FIELDS, choosePreset, chosenPreset, defaultOf, loadPresets, newSettings, problemOf, savePresets } from "./settings.js";
import { words } from "./words.js";

/** @typedef {import("./settings.js").Field} Field */

export class SettingsPanel {
  /**
   * @param {import("./server.js").Server} server
   * @param {import("./chat.js").Chat} chat
   */
  constructor(server, chat) {
    this.server = server;
    this.chat = chat;
    this.panel = byId("settings");
    this.button = byId("open-settings");
    this.button.addEventListener("click", () => this.toggle());
    byId("close-settings").addEventListener("click", () => this.toggle());
    this.panel.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Escape" || event.isComposing) return;
      event.preventDefault(); // it stops no answer
      this.toggle();
    });
  }

  toggle() {
    this.panel.hidden = !this.panel.hidden;
    this.button.setAttribute("aria-expanded", String(!this.panel.hidden));
    this.show();
    if (this.panel.hidden) this.button.focus();
  }

  /** Show the settings of the conversation that is open now. */
  show() {
    if (this.panel.hidden) return;
    const groups = [...new Set(FIELDS.map((field) => field.group))];
    fill(
      byId("settings-fields"),
      h("h2", {}, words.settings),
      this.presets(),
      labelled("system", words.systemPrompt, "", (id) =>
        h("textarea", { id, rows: 4, value: this.conversation.system, placeholder: words.none, oninput: (/** @type {any} */ event) => this.change({ system: event.target.value }) }),
      ),
      groups.map((group) => h("fieldset", {}, h("legend", {}, words.groups[group]), FIELDS.filter((field) => field.group === group).map((field) => this.row(field)))),
      this.server.tools.length > 0 && this.tools(),
      h("button", { type: "button", class: "quiet", onclick: () => this.choose("") }, words.resetSettings),
    );
  }

  tools() {
    const chosen = new Set((this.conversation.settings?.tools ?? "").split("\n").filter(Boolean));
    const box = (/** @type {import("./tools.js").Tool} */ { tool, display_name: name, definition }) =>
      h("label", { class: "check", title: definition.function.description },
        h("input", { type: "checkbox", checked: chosen.has(tool), onchange: (/** @type {any} */ event) => {
          if (event.target.checked) chosen.add(tool);
          else chosen.delete(tool);
          this.change({ settings: { ...this.conversation.settings, tools: [...chosen].join("\n") } });
        } }),
        h("span", { class: "name" }, name));
    return h("fieldset", {}, h("legend", {}, words.tools), this.server.tools.map(box));
  }

  get conversation() {
    return this.chat.conversation;
  }

  /** @param {Partial<import("./settings.js").Preset>} changed */
  change(changed) {
    Object.assign(this.conversation, changed);
    void this.chat.saveSettings();
  }

  /** This conversation and those to come get a preset. @param {string} name */
  choose(name) {
    choosePreset(name);
    this.change(structuredClone(newSettings()));
    this.show();
  }

  presets() {
    const names = Object.keys(loadPresets());
    const chosen = chosenPreset();
    const save = () => {
      const name = prompt(words.presetName, chosen)?.trim();
      if (!name) return;
      const { system, settings } = this.conversation;
      savePresets({ ...loadPresets(), [name]: { system, settings } });
      choosePreset(name);
      this.show();
    };
    const remove = () => {
      const { [chosen]: _, ...rest } = loadPresets();
      savePresets(rest);
      choosePreset("");
      this.show();
    };
    return labelled("preset", words.presets, "", (id) =>
      h("div", { class: "row" },
        h("select", { id, onchange: (/** @type {any} */ event) => this.choose(event.target.value) }, ["", ...names].map((name) => h("option", { value: name, selected: name === chosen }, name || words.serversDefaults))),
        h("button", { type: "button", class: "small", onclick: save }, words.savePreset),
        chosen && h("button", { type: "button", class: "quiet small", onclick: remove }, words.deletePreset),
      ),
    );
  }

  /** @param {Field} field */
  row(field) {
    const [label, hint] = words.fields[field.name];
    const standard = defaultOf(field, this.server.props);
    const problem = h("span", { class: "problem", role: "alert" });
    const change = (/** @type {any} */ event) => {
      const wrong = problemOf(field, event.target.value);
      problem.textContent = wrong;
      event.target.setAttribute("aria-invalid", wrong ? "true" : "false");
      this.change({ settings: { ...this.conversation.settings, [field.name]: event.target.value } });
    };
    return labelled(field.name, label, hint, (id) => [control(field, id, this.conversation.settings?.[field.name] ?? "", standard, change), problem]);
  }
}

/**
 * @param {Field} field
 * @param {string} id
 * @param {string} value
 * @param {string} standard
 * @param {(event: any) => void} change
 */
function control(field, id, value, standard, change) {
  const described = { id, "aria-describedby": `${id}-hint` };
  if (field.kind === "choice")
    return h("select", { ...described, onchange: change }, field.choices?.map((key) => h("option", { value: key, selected: key === value }, words.choices[key] + (!key && standard ? ` (${standard})` : ""))));
  if (field.kind === "lines" || field.kind === "json")
    return h("textarea", { ...described, rows: field.kind === "json" ? 4 : 2, value, oninput: change, spellcheck: "false", placeholder: standard || words.none });
  return h("input", { ...described, type: "text", inputmode: "decimal", value, placeholder: standard || words.default, oninput: change });
}

/**
 * @param {string} name
 * @param {string} label
 * @param {string} hint
 * @param {(id: string) => any} make
 */
function labelled(name, label, hint, make) {
  const id = `setting-${name.replaceAll(".", "-")}`;
  return h("div", { class: "setting" }, h("label", { for: id }, label), make(id), hint && h("p", { class: "hint", id: `${id}-hint` }, hint));
}
