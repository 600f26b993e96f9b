/** The API's page: every path of this server with its fields, from /openapi.json. */

import { getJson, onKeyNeeded } from "./api.js";
import { byId, fill, h } from "./dom.js";
import { askForKey } from "./key-dialog.js";
import { startTheme } from "./theme.js";
import { fillWords, language, words } from "./words.js";

document.documentElement.lang = language;
fillWords(document);
startTheme();
onKeyNeeded(askForKey);

try {
  const { paths, components } = await getJson("openapi.json");
  const all = Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => describe(path, method, operation, components.schemas)));
  fill(byId("paths"), all);
} catch (error) {
  byId("problem").textContent = /** @type {Error} */ (error).message;
}
document.body.dataset.ready = "true";

/**
 * @param {string} path
 * @param {string} method
 * @param {any} operation
 * @param {Record<string, any>} schemas
 */
function describe(path, method, operation, schemas) {
  const reference = operation.requestBody?.content["application/json"].schema.$ref;
  const fields = Object.entries(schemas[reference?.split("/").at(-1)]?.properties ?? {});
  const rows = fields.map(([name, field]) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, name)), h("td", {}, typeOf(field)), h("td", {}, meaningOf(field))));
  const heads = [words.field, words.type, words.meaning].map((name) => h("th", { scope: "col" }, name));
  return h(
    "details",
    {},
    h("summary", {}, h("span", { class: "method" }, method.toUpperCase()), h("code", {}, path), h("span", { class: "hint" }, operation.summary)),
    h(
      "div",
      { class: "about" },
      operation.description && h("p", { class: "hint" }, coded(operation.description)),
      h("p", {}, `${words.returns}: `, coded(operation.responses["200"].description)),
      rows.length > 0 && h("div", { class: "table", tabindex: "0", role: "group", "aria-label": words.body }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows))),
    ),
  );
}

/** @param {any} field of a schema */
function typeOf(field) {
  const types = (field.anyOf ?? [field]).map((/** @type {any} */ one) => one.type ?? one.$ref?.split("/").at(-1));
  return types.filter((/** @type {string} */ type) => type && type !== "null").join(", ");
}

/** @param {any} field of a schema */
function meaningOf({ description = "", default: standard }) {
  const hasDefault = standard !== undefined && standard !== null && typeof standard !== "object" && standard !== "";
  return [description, hasDefault && words.defaultIs(JSON.stringify(standard))].filter(Boolean).join("; ");
}

/** Text with `code` in it. @param {string} text */
function coded(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}
