/** Tools that the server runs for the model: built-in ones (--tools) and those of MCP servers. */

import { getJson, postJson } from "./api.js";

/** @typedef {{tool: string, display_name: string, definition: any}} Tool as GET /tools lists it */

const FLAGS = ["tools", "mcp_servers_config", "mcp_servers_json"];

/** @type {Set<string>} ids of messages whose calls are being run, whichever conversation is open */
export const calling = new Set();

/** @param {any} props of the server @returns {Promise<Tool[]>} */
export async function listTools(props) {
  const isOn = props.settings?.some((/** @type {any} */ one) => FLAGS.includes(one.name) && one.value);
  return isOn ? getJson("tools").catch(() => []) : [];
}

/**
 * The part of a request's body that the chosen tools make.
 * @param {Tool[]} tools
 * @param {string} chosen names, one a line
 */
export function toolsBody(tools, chosen = "") {
  const names = chosen.split("\n");
  const definitions = tools.filter(({ tool }) => names.includes(tool)).map(({ definition }) => definition);
  return definitions.length ? { tools: definitions } : {};
}

/**
 * Run a call that a model wrote.
 * @param {{name: string, arguments: string}} call
 * @returns {Promise<string>} what the model is told
 */
export async function runCall(call) {
  try {
    const result = await postJson("tools", { tool: call.name, params: JSON.parse(call.arguments || "{}") });
    return result.plain_text_response ?? result.error ?? JSON.stringify(result);
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}
