/** Starts the page: waits for the model, then joins chat, comparison and board. */

import { getJson, onKeyNeeded, whyNotReady } from "./api.js";
import { Board } from "./board.js";
import { Chat } from "./chat.js";
import { Compare } from "./compare.js";
import { byId, toast } from "./dom.js";
import { hide, switchInspector } from "./inspector.js";
import { askForKey } from "./key-dialog.js";
import { chooseModel } from "./models.js";
import { showSettings } from "./settings-panel.js";
import { toggleSidebar } from "./sidebar.js";
import { PlainSteps } from "./plain-steps.js";
import { knowSpeculators } from "./speculators.js";
import { listConversations, loadMessages, saveConversation, saveMessages } from "./store.js";
import { startTheme } from "./theme.js";
import { canTint, showTints } from "./tint.js";
import { exportText, importText } from "./transfer.js";

const VIEWS = ["chat", "compare", "board"];
const TINT_KEY = "headstart-tint";
const DEMO = [
  "Rename `data` to `buffer`:\n```python\ndef write(self, data):\n    self.file.write(data)\n    return len(data)\n```",
  "Describe this function as JSON:\n```python\ndef write(self, data):\n    self.file.write(data)\n    return len(data)\n```",
];
const SUGGESTIONS = [
  "Write a Python class for a bank account, with docstrings and tests.",
  "Give me a JSON list of the planets with name, radius in km and number of moons.",
  "Explain speculative decoding to somebody who knows how language models work.",
];

/** @type {any} what /props says */
let props = {};

async function start() {
  onKeyNeeded(askForKey);
  startTheme();
  await untilReady();
  props = await getJson("props");
  await chooseModel(props);
  if (props.role === "router") {
    byId("loading").hidden = false;
    byId("loading-text").textContent = "The model is being loaded…";
    props = await getJson("props");
    byId("loading").hidden = true;
  }
  knowSpeculators(props.speculation.types ?? []);
  showServer();
  const board = new Board();
  const plainSteps = new PlainSteps();
  const isDeterministic = () => props.settings?.some((/** @type {any} */ one) => one.name === "deterministic" && one.value === true) ?? false;
  const compare = new Compare({ plainSteps, isDeterministic });
  const chat = new Chat({
    plainSteps,
    suggestions: () => (props.target_model.name === "demo-target" ? DEMO : SUGGESTIONS),
    compare: (messages) => {
      location.hash = "compare";
      compare.open(messages);
    },
  });
  startTintSwitch();
  startSidebar(chat);
  startPanel(chat);
  const route = () => show(VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat", board);
  addEventListener("hashchange", route);
  route();
  await chat.start();
  document.body.dataset.ready = "true";
}

/** Wait while the model loads, and say so. */
async function untilReady() {
  for (;;) {
    const reason = await whyNotReady().catch(() => "The server does not answer.");
    byId("loading").hidden = !reason;
    byId("loading-text").textContent = reason === "Loading model" ? "The model is being loaded…" : reason;
    if (!reason) return;
    await new Promise((resolve) => setTimeout(resolve, 700));
  }
}

function showServer() {
  byId("model").textContent = byId("models").hidden ? props.model_alias : "";
  const { mode, types = [], unusable } = props.speculation;
  const isOff = mode === "off" || unusable || !types.length;
  const pill = byId("speculation");
  pill.textContent = isOff ? "guessing is off" : `guessing: ${types.join(", ")}`;
  const draft = props.draft_model?.name;
  const files = [draft && `draft model ${draft}`, props.speculation.heads?.words];
  pill.title = unusable || [`mode ${mode}`, ...files.filter(Boolean)].join("; ");
  pill.classList.toggle("off", Boolean(isOff));
}

/**
 * @param {string} view
 * @param {Board} board
 */
function show(view, board) {
  hide();
  for (const name of VIEWS) {
    byId(name).hidden = name !== view;
    const tab = byId(`to-${name}`);
    if (name === view) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  if (view === "board") board.show();
  else board.leave();
}

function startTintSwitch() {
  const box = byId("tint");
  const apply = () => {
    showTints(box.checked);
    switchInspector(box.checked);
    document.body.classList.toggle("no-tint", !box.checked);
    localStorage.setItem(TINT_KEY, box.checked ? "on" : "off");
  };
  box.checked = canTint && localStorage.getItem(TINT_KEY) !== "off";
  box.disabled = !canTint;
  if (!canTint) byId("tint-label").title = "This browser cannot do it: it lacks the CSS Custom Highlight API";
  box.addEventListener("change", apply);
  if (canTint) apply();
}

/** @param {Chat} chat */
function startSidebar(chat) {
  byId("menu").addEventListener("click", () => toggleSidebar());
  byId("veil").addEventListener("click", () => toggleSidebar(false));
  const begin = () => {
    location.hash = "chat";
    chat.open(null);
  };
  byId("new").addEventListener("click", begin);
  byId("export").addEventListener("click", async () => {
    const list = [];
    for (const conversation of await listConversations())
      list.push({ conversation, messages: [...(await loadMessages(conversation.id)).values()] });
    download("headstart-conversations.json", exportText(list));
  });
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", async (/** @type {any} */ event) => {
    try {
      const list = importText(await event.target.files[0].text());
      for (const { conversation, messages } of list) {
        await saveConversation(conversation);
        await saveMessages(...messages);
      }
      await chat.refreshList();
      toast(`${list.length} ${list.length === 1 ? "conversation" : "conversations"} imported`);
    } catch (error) {
      toast(/** @type {Error} */ (error).message);
    }
    event.target.value = "";
  });
  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "o") {
      event.preventDefault();
      begin();
    }
    if (event.key === "Escape" && chat.running) chat.stop();
  });
}

/** @param {Chat} chat */
function startPanel(chat) {
  const panel = byId("settings");
  const button = byId("open-settings");
  const toggle = () => {
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
    if (panel.hidden) return;
    showSettings(byId("settings-fields"), props.default_generation_settings.params, {
      system: chat.conversation.system,
      onSystem: (text) => chat.setSystem(text),
    });
  };
  button.addEventListener("click", toggle);
  byId("close-settings").addEventListener("click", toggle);
}

/**
 * @param {string} name
 * @param {string} text
 */
function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

start().catch((error) => {
  byId("loading").hidden = false;
  byId("loading-text").textContent = error.message;
});
