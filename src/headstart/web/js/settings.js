/** Settings of requests: what the user changed is sent, the rest is the server's. And presets of them. */

import { words } from "./words.js";

/**
 * @typedef {object} Field
 * @property {string} name in the request's body
 * @property {"number" | "integer" | "lines" | "json" | "choice"} kind
 * @property {string[]} [choices]
 * @property {keyof typeof words.groups} group
 */

/** @type {Field[]} */
export const FIELDS = [
  { group: "sampling", name: "temperature", kind: "number" },
  { group: "sampling", name: "top_k", kind: "integer" },
  { group: "sampling", name: "top_p", kind: "number" },
  { group: "sampling", name: "min_p", kind: "number" },
  { group: "sampling", name: "repeat_penalty", kind: "number" },
  { group: "sampling", name: "presence_penalty", kind: "number" },
  { group: "sampling", name: "frequency_penalty", kind: "number" },
  { group: "sampling", name: "seed", kind: "integer" },
  { group: "answer", name: "max_tokens", kind: "integer" },
  { group: "answer", name: "stop", kind: "lines" },
  { group: "answer", name: "json_schema", kind: "json" },
  { group: "reasoning", name: "chat_template_kwargs.enable_thinking", kind: "choice", choices: ["", "true", "false"] },
  { group: "reasoning", name: "reasoning_budget_tokens", kind: "integer" },
  { group: "speculation", name: "speculative.mode", kind: "choice", choices: ["", "auto", "fixed", "off"] },
  { group: "speculation", name: "speculative.n_max", kind: "integer" },
  { group: "speculation", name: "speculative.types", kind: "lines" },
];

/** @typedef {Record<string, string>} Given texts of fields that the user filled in */
/** @typedef {{system: string, settings: Given}} Preset */

const PRESETS = "headstart-presets";
const CHOSEN = "headstart-preset"; // of new conversations

/** @returns {Record<string, Preset>} by name */
export function loadPresets() {
  try {
    return JSON.parse(localStorage.getItem(PRESETS) ?? "{}");
  } catch {
    return {};
  }
}

/** @param {Record<string, Preset>} presets */
export function savePresets(presets) {
  localStorage.setItem(PRESETS, JSON.stringify(presets));
}

/** The preset that new conversations get; "" is the server's defaults. */
export function chosenPreset() {
  const name = localStorage.getItem(CHOSEN) ?? "";
  return name in loadPresets() ? name : "";
}

/** @param {string} name */
export function choosePreset(name) {
  localStorage.setItem(CHOSEN, name);
}

/** What a new conversation begins with. @returns {Preset} */
export function newSettings() {
  return loadPresets()[chosenPreset()] ?? { system: "", settings: {} };
}

/**
 * What is wrong with a field's text; "" if nothing.
 * @param {Field} field
 * @param {string} text
 */
export function problemOf(field, text) {
  if (!text.trim()) return "";
  const isNumber = field.kind === "number" || field.kind === "integer";
  if (isNumber && !Number.isFinite(Number(text))) return words.mustBeNumber;
  if (field.kind === "integer" && !Number.isInteger(Number(text))) return words.mustBeWhole;
  if (field.kind === "json") {
    try {
      if (typeof JSON.parse(text) !== "object") return words.mustBeObject;
    } catch (error) {
      return words.isNotJson(/** @type {Error} */ (error).message);
    }
  }
  return "";
}

/**
 * The part of a request's body that settings make. Wrong and empty fields are left out.
 * @param {Given} [given]
 * @returns {Record<string, any>}
 */
export function bodyOf(given = {}) {
  /** @type {Record<string, any>} */
  const body = {};
  for (const field of FIELDS) {
    const text = given[field.name] ?? "";
    if (!text.trim() || problemOf(field, text)) continue;
    const value = valueOf(field, text);
    const [outer, inner] = field.name.split(".");
    if (inner) body[outer] = { ...body[outer], [inner]: value };
    else if (field.kind === "json") body.response_format = { type: "json_schema", json_schema: { schema: value } };
    else body[field.name] = value;
  }
  return body;
}

/**
 * @param {Field} field
 * @param {string} text
 */
function valueOf(field, text) {
  if (field.kind === "number" || field.kind === "integer") return Number(text);
  if (field.kind === "lines") return text.split("\n").filter((line) => line !== "");
  if (field.kind === "json" || field.choices?.includes("true")) return JSON.parse(text);
  return text;
}

/**
 * The server's default for a field, to show where the user gave none.
 * @param {Field} field
 * @param {any} props of the server
 */
export function defaultOf({ name }, props) {
  const [outer, inner] = name.split(".");
  const budget = () => props?.settings?.find((/** @type {any} */ one) => one.name === "reasoning_budget")?.value;
  const value = outer === "speculative" ? props?.speculation[inner] : name === "reasoning_budget_tokens" ? budget() : props?.default_generation_settings.params[name];
  if (Array.isArray(value)) return value.join("\n");
  if (value === null || value === undefined) return "";
  if (name === "seed" && value === 0xffffffff) return "-1"; // llama-server's number for a new one
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
}
