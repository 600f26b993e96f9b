/** Which model of a router the page talks to. A server of one model leaves no choice. */

import { getJson, talkTo } from "./api.js";
import { byId } from "./dom.js";

const CHOSEN = "headstart-model";

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
  list.addEventListener("focus", () => void fill(list, list.value));
  list.addEventListener("change", () => {
    localStorage.setItem(CHOSEN, list.value);
    location.reload(); // everything that is shown is of one model
  });
}

/**
 * @param {any} list
 * @param {string | null} wanted
 */
async function fill(list, wanted) {
  /** @type {{ id: string, status: { value: string, failed?: boolean, reason?: string } }[]} */
  const models = (await getJson("models")).data;
  const loaded = models.find(({ status }) => status.value === "loaded");
  const chosen = models.find(({ id }) => id === wanted) ?? loaded ?? models[0];
  list.replaceChildren(
    ...models.map(({ id, status }) => {
      const state = status.failed ? "failed" : status.value;
      const option = new Option(state === "unloaded" ? id : `${id} (${state})`, id, false, id === chosen.id);
      option.title = status.reason ?? "";
      return option;
    }),
  );
  return models;
}
