/** The panel with the system prompt and the settings of requests. */

import { fill, h } from "./dom.js";
import { FIELDS, defaultOf, loadSettings, problemOf, saveSettings } from "./settings.js";

/** @typedef {import("./settings.js").Field} Field */

/**
 * @param {HTMLElement} root
 * @param {Record<string, any>} defaults of /props
 * @param {{system: string, onSystem: (text: string) => void}} conversation
 */
export function showSettings(root, defaults, { system, onSystem }) {
  const given = loadSettings();
  const groups = [...new Set(FIELDS.map((field) => field.group))];
  fill(
    root,
    h("h2", {}, "Settings"),
    labelled("System prompt", "of this conversation", "system", (id) =>
      h("textarea", {
        id, rows: 4, value: system, placeholder: "none",
        oninput: (/** @type {any} */ event) => onSystem(event.target.value),
      }),
    ),
    groups.map((group) =>
      h(
        "fieldset",
        {},
        h("legend", {}, group),
        FIELDS.filter((field) => field.group === group).map((field) => row(field, given, defaults)),
      ),
    ),
    h(
      "button",
      {
        type: "button", class: "quiet",
        onclick: () => {
          saveSettings({});
          showSettings(root, defaults, { system, onSystem });
        },
      },
      "Back to the server's defaults",
    ),
  );
}

/**
 * @param {Field} field
 * @param {import("./settings.js").Given} given
 * @param {Record<string, any>} defaults
 */
function row(field, given, defaults) {
  const problem = h("span", { class: "problem", role: "alert" });
  const change = (/** @type {any} */ event) => {
    given[field.name] = event.target.value;
    const wrong = problemOf(field, event.target.value);
    problem.textContent = wrong;
    event.target.setAttribute("aria-invalid", wrong ? "true" : "false");
    saveSettings(given);
  };
  return labelled(field.label, field.hint, field.name, (id) => [
    control(field, id, given[field.name] ?? "", defaultOf(field, defaults), change),
    problem,
  ]);
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
    return h(
      "select",
      { ...described, onchange: change },
      (field.choices ?? []).map(([key, label]) => h("option", { value: key, selected: key === value }, label)),
    );
  if (field.kind === "lines" || field.kind === "json")
    return h("textarea", { ...described, rows: field.kind === "json" ? 4 : 2, value, oninput: change, spellcheck: "false", placeholder: "none" });
  return h("input", { ...described, type: "text", inputmode: "decimal", value, placeholder: standard || "default", oninput: change });
}

/**
 * @param {string} label
 * @param {string} hint
 * @param {string} name
 * @param {(id: string) => any} make
 */
function labelled(label, hint, name, make) {
  const id = `setting-${name.replace(".", "-")}`;
  return h(
    "div",
    { class: "setting" },
    h("label", { for: id }, label),
    make(id),
    h("p", { class: "hint", id: `${id}-hint` }, hint),
  );
}
