/** Settings of requests: what the user changed is sent, the rest is the server's. Pure but for `load` and `save`. */

/**
 * @typedef {object} Field
 * @property {string} name in the request's body
 * @property {string} label
 * @property {"number" | "integer" | "lines" | "json" | "choice"} kind
 * @property {string} hint
 * @property {[string, string][]} [choices] value and label
 * @property {string} group
 */

/** @type {Field[]} */
export const FIELDS = [
  { group: "Sampling", name: "temperature", label: "Temperature", kind: "number", hint: "0 always takes the likeliest token" },
  { group: "Sampling", name: "top_k", label: "Top k", kind: "integer", hint: "sample from the k likeliest tokens; 0 from all" },
  { group: "Sampling", name: "top_p", label: "Top p", kind: "number", hint: "sample from the likeliest tokens that together have this probability" },
  { group: "Sampling", name: "min_p", label: "Min p", kind: "number", hint: "drop tokens less likely than this share of the likeliest" },
  { group: "Sampling", name: "repeat_penalty", label: "Repeat penalty", kind: "number", hint: "1 is none" },
  { group: "Sampling", name: "presence_penalty", label: "Presence penalty", kind: "number", hint: "0 is none" },
  { group: "Sampling", name: "frequency_penalty", label: "Frequency penalty", kind: "number", hint: "0 is none" },
  { group: "Sampling", name: "seed", label: "Seed", kind: "integer", hint: "-1 takes a new one each time" },
  { group: "Answer", name: "max_tokens", label: "Most tokens", kind: "integer", hint: "-1 until the model stops" },
  { group: "Answer", name: "stop", label: "Stop texts", kind: "lines", hint: "one a line" },
  { group: "Answer", name: "json_schema", label: "JSON schema", kind: "json", hint: "the answer will be JSON that fits it" },
  {
    group: "Guessing ahead", name: "speculative.mode", label: "Mode", kind: "choice",
    hint: "changes the speed, never the text",
    choices: [["", "as the server was started"], ["auto", "auto: where it pays"], ["fixed", "fixed length"], ["off", "off"]],
  },
  { group: "Guessing ahead", name: "speculative.n_max", label: "Most draft tokens", kind: "integer", hint: "a step" },
  { group: "Guessing ahead", name: "speculative.types", label: "Speculators", kind: "lines", hint: "one a line, in order of preference" },
];

/** @typedef {Record<string, string>} Given texts of fields that the user filled in */

const KEY = "headstart-settings";

/** @returns {Given} */
export function loadSettings() {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}");
  } catch {
    return {};
  }
}

/** @param {Given} given */
export function saveSettings(given) {
  localStorage.setItem(KEY, JSON.stringify(given));
}

/**
 * What is wrong with a field's text; "" if nothing.
 * @param {Field} field
 * @param {string} text
 */
export function problemOf(field, text) {
  if (!text.trim()) return "";
  const isNumber = field.kind === "number" || field.kind === "integer";
  if (isNumber && !Number.isFinite(Number(text))) return "must be a number";
  if (field.kind === "integer" && !Number.isInteger(Number(text))) return "must be a whole number";
  if (field.kind === "json") {
    try {
      if (typeof JSON.parse(text) !== "object") return "must be an object";
    } catch (error) {
      return `is not JSON: ${/** @type {Error} */ (error).message}`;
    }
  }
  return "";
}

/**
 * The part of a request's body that settings make. Wrong and empty fields are left out.
 * @param {Given} given
 * @returns {Record<string, any>}
 */
export function bodyOf(given) {
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
  if (field.kind === "json") return JSON.parse(text);
  return text;
}

/**
 * The server's default for a field, to show where the user gave none.
 * @param {Field} field
 * @param {Record<string, any>} defaults `default_generation_settings.params` of /props
 */
export function defaultOf(field, defaults) {
  const value = defaults[field.name];
  if (value === null || value === undefined || Array.isArray(value)) return "";
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
}
