/** Starts the page and joins its parts. What a view alone needs is loaded when it is first shown. */

import { onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { byId, download, fillIcons, toast } from "./dom.js";
import { hide, switchInspector } from "./inspector.js";
import { askForKey } from "./key-dialog.js";
import { Server } from "./server.js";
import { SettingsPanel } from "./settings-panel.js";
import { listConversations, loadMessages, saveConversation } from "./store.js";
import { startTheme } from "./theme.js";
import { canTint, showTints } from "./tint.js";
import { exportText, importText } from "./transfer.js";
import { fillWords, language, words } from "./words.js";

const VIEWS = ["chat", "compare", "board"];
const DRAFTS_KEY = "headstart-drafts";

document.documentElement.lang = language;
fillWords(document);
fillIcons(document);
startTheme();
onKeyNeeded(askForKey);
startDraftsSwitch();

const server = new Server();
const loading = server.refresh();
/** @type {Promise<import("./compare.js").Compare> | undefined} */
let comparing;
/** @type {Promise<import("./board.js").Board> | undefined} */
let boarding;
const compare = () => (comparing ??= import("./compare.js").then(({ Compare }) => new Compare(server, () => chat.conversation.settings)));
const board = () => (boarding ??= import("./board.js").then(({ Board }) => new Board()));

const chat = new Chat(server, {
  opened: () => panel.show(),
  compare: async (messages) => {
    location.hash = "compare";
    (await compare()).open(messages);
  },
});
const panel = new SettingsPanel(server, chat);
server.onChange(() => panel.show());
startConversations();
addEventListener("hashchange", route);
route();
await chat.start();
document.body.dataset.shown = "true";
await loading;
document.body.dataset.ready = "true";

/** Show the view that the address names, once what it needs is there. */
async function route() {
  const named = () => VIEWS.find((one) => location.hash === `#${one}`) ?? VIEWS[0];
  const view = named();
  if (view === "compare") await compare();
  if (view === "board") await board();
  if (view !== named()) return; // the user went on meanwhile
  hide();
  for (const one of VIEWS) {
    byId(one).hidden = one !== view;
    const tab = byId(`to-${one}`);
    if (one === view) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  if (view === "board") (await board()).show();
  else if (boarding) (await boarding).leave();
}

function startDraftsSwitch() {
  const button = byId("drafts");
  let isOn = canTint && localStorage.getItem(DRAFTS_KEY) !== "off";
  const apply = () => {
    button.setAttribute("aria-pressed", String(isOn));
    showTints(isOn);
    switchInspector(isOn);
    document.body.classList.toggle("no-drafts", !isOn);
  };
  button.disabled = !canTint;
  if (!canTint) button.title = words.cannotMark;
  else apply();
  button.addEventListener("click", () => {
    isOn = !isOn;
    localStorage.setItem(DRAFTS_KEY, isOn ? "on" : "off");
    apply();
  });
}

function startConversations() {
  const begin = () => {
    location.hash = "chat";
    chat.open(null);
  };
  byId("new").addEventListener("click", begin);
  byId("export").addEventListener("click", async () => {
    const list = [];
    for (const conversation of await listConversations())
      list.push({ conversation, messages: [...(await loadMessages(conversation.id)).values()] });
    download("headstart-conversations.json", exportText(list), "application/json");
  });
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", async (/** @type {any} */ event) => {
    try {
      const list = importText(await event.target.files[0].text());
      for (const { conversation, messages } of list) await saveConversation(conversation, ...messages);
      await chat.refreshList();
      toast(words.imported(list.length));
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
    if (event.key === "Escape" && !event.isComposing && !event.defaultPrevented && byId("settings").hidden) chat.stop();
  });
}
