/** Which model of a router the page talks to. A server of one model leaves no choice. */

import { getJson, stream, talkTo } from "./api.js";
import { byId, toast } from "./dom.js";

const CHOSEN = "headstart-model";
/** @type {Map<string, Map<string, { done: number, total: number }>>} model: file: bytes */
const downloads = new Map();

/**
 * Choose the model that was chosen last, or else one that is loaded, and offer all of them. Asking
 * for what it says of itself, which comes next, loads it.
 * @param {any} props what /props says: of the router, if it is one
 */
export async function chooseModel(props) {
  if (props.role !== "router") return;
  const list = byId("models");
  const models = await fill(list, localStorage.getItem(CHOSEN));
  if (!models.length) throw new Error("This router has no models: start it with --models-dir or --models-preset.");
  talkTo(list.value);
  list.hidden = false;
  void follow(list);
  list.addEventListener("focus", () => void fill(list, list.value));
  list.addEventListener("change", () => {
    localStorage.setItem(CHOSEN, list.value);
    location.reload(); // everything that is shown is of one model
  });
}

/** Keep the list as the router tells of its models. @param {any} list */
async function follow(list) {
  try {
    for await (const { event, model, data } of stream("models/sse", null, new AbortController().signal)) {
      if (event === "download_progress") {
        downloads.set(model, new Map([...(downloads.get(model) ?? []), ...Object.entries(data)]));
        const option = [...list.options].find(({ value }) => value === model);
        if (option) option.text = nameWith(model, "downloading");
        else await fill(list, list.value);
        continue;
      }
      if (event === "download_failed") toast(`${model} was not downloaded: ${data.message}`);
      if (event.startsWith("download")) downloads.delete(model);
      await fill(list, list.value);
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
function nameWith(id, state) {
  if (state === "unloaded") return id;
  const files = [...(downloads.get(id)?.values() ?? [])];
  const total = files.reduce((sum, file) => sum + file.total, 0);
  const done = files.reduce((sum, file) => sum + file.done, 0);
  return `${id} (${state}${state === "downloading" && total ? ` ${Math.floor((100 * done) / total)} %` : ""})`;
}

/**
 * @param {any} list
 * @param {string | null} wanted
 */
async function fill(list, wanted) {
  /** @type {{ id: string, status: { value: string, failed?: boolean, reason?: string } }[]} */
  const models = (await getJson("models")).data;
  const usable = models.filter(({ status }) => status.value !== "downloading");
  const loaded = usable.find(({ status }) => status.value === "loaded");
  const chosen = usable.find(({ id }) => id === wanted) ?? loaded ?? usable.find(({ status }) => !status.failed) ?? usable[0];
  list.replaceChildren(
    ...models.map(({ id, status }) => {
      const state = status.failed ? "failed" : status.value;
      const option = new Option(nameWith(id, state), id, false, id === chosen?.id);
      option.title = status.reason ?? "";
      option.disabled = state === "downloading";
      return option;
    }),
  );
  return usable;
}
