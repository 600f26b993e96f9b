/** The server's API with the key that the user gave, which is kept for this session only. */

import { readEvents } from "./sse.js";
import { words } from "./words.js";

const KEY = "headstart-api-key";
let model = ""; // of a router with several; empty: the only one

/** An answer of the server that is an error; `status` is HTTP's. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @type {() => Promise<string>} asks the user; set by main.js */
let askForKey = async () => {
  throw new ApiError(401, words.keyHint);
};
/** @type {Promise<string> | null} one dialog, however many requests wait for it */
let asking = null;

/** @param {() => Promise<string>} ask */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Ask this model of a router from now on. @param {string} name */
export function talkTo(name) {
  model = name;
}

/**
 * @param {string} path relative to the page, so that a prefix in front of it does not matter
 * @returns {Promise<any>}
 */
export async function getJson(path) {
  return (await request(ofModel(path), {})).json();
}

/**
 * @param {string} path
 * @param {any} body
 * @returns {Promise<any>}
 */
export async function postJson(path, body) {
  return (await request(path, posted(body))).json();
}

/** @param {string} path */
export async function remove(path) {
  await request(ofModel(path), { method: "DELETE" });
}

/**
 * Ask for a stream of JSON values.
 * @param {string} path
 * @param {any} body null for GET
 * @param {AbortSignal} signal
 * @param {Record<string, string>} [headers]
 * @param {import("./sse.js").Place} [place] moves on with each value
 * @returns {AsyncGenerator<any>}
 */
export async function* stream(path, body, signal, headers = {}, place) {
  const options = body === null ? {} : posted(body, headers);
  const response = await request(body === null ? ofModel(path) : path, { ...options, signal });
  if (!response.body) throw new ApiError(502, words.noBody);
  for await (const value of readEvents(response.body, place)) {
    if (value.error) throw new ApiError(value.error.code ?? 500, value.error.message);
    yield value;
  }
}

/**
 * @param {any} body
 * @param {Record<string, string>} [headers]
 * @returns {RequestInit}
 */
function posted(body, headers = {}) {
  return { method: "POST", body: JSON.stringify(model ? { model, ...body } : body), headers: { "Content-Type": "application/json", ...headers } };
}

/** @param {string} path of something that has no body to name the model in */
function ofModel(path) {
  return model ? `${path}${path.includes("?") ? "&" : "?"}model=${encodeURIComponent(model)}` : path;
}

/** Whether requests can be taken; the reason if not. @returns {Promise<string>} */
export async function whyNotReady() {
  const response = await fetch("health");
  return response.ok ? "" : (await errorOf(response)).message;
}

/**
 * @param {string} path
 * @param {RequestInit} options
 * @returns {Promise<Response>}
 */
async function request(path, options) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = new Headers(options.headers);
    headers.set("X-Headstart-Page", "1"); // no link or form of another site can send it
    if (key) headers.set("Authorization", `Bearer ${key}`);
    const response = await fetch(path, { ...options, headers });
    if (response.ok) return response;
    if (response.status !== 401) throw await errorOf(response);
    if (sessionStorage.getItem(KEY) !== key) continue; // another request got a new one meanwhile
    asking ??= askForKey().finally(() => (asking = null));
    sessionStorage.setItem(KEY, await asking);
  }
}

/** @param {Response} response */
async function errorOf(response) {
  const body = await response.json().catch(() => ({}));
  return new ApiError(response.status, body.error?.message ?? words.badAnswer(response.status));
}
