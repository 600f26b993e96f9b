/** Branches, settings, export and import. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { WEB } from "./support.mjs";

const { leafBelow, pathTo, siblings, titleOf, toMessages, withAllBelow } = await import(new URL("tree.js", WEB));
const { FIELDS, bodyOf, defaultOf, problemOf } = await import(new URL("settings.js", WEB));
const { asMarkdown, exportText, importText } = await import(new URL("transfer.js", WEB));
const { packProvenance, unpackProvenance } = await import(new URL("packing.js", WEB));

const message = (id, parent, role, created = 0) => ({ id, parent, role, created, conversation: "c", content: id });
const tree = new Map(
  [message("q", null, "user"), message("a1", "q", "assistant", 1), message("a2", "q", "assistant", 2), message("q2", "a1", "user", 3), message("b", "q2", "assistant", 4)].map((one) => [one.id, one]),
);

test("a path leads from the first message to the leaf", () => {
  assert.deepEqual(pathTo(tree, "b").map((one) => one.id), ["q", "a1", "q2", "b"]);
  assert.deepEqual(pathTo(tree, "gone"), []);
  assert.equal(leafBelow(tree, "a1"), "b");
  assert.deepEqual(siblings(tree, tree.get("a2")).map((one) => one.id), ["a1", "a2"]);
});

test("a ring in a damaged file does not hang", () => {
  const ring = new Map([["x", message("x", "y", "user")], ["y", message("y", "x", "user")]]);
  assert.equal(pathTo(ring, "x").length, 2);
});

test("the system prompt comes first, if there is one", () => {
  assert.deepEqual(toMessages([tree.get("q")], " "), [{ role: "user", content: "q" }]);
  assert.equal(toMessages([tree.get("q")], "Be brief.")[0].role, "system");
});

test("titles are one short line that says what it is about", () => {
  assert.equal(titleOf("  Hello\nworld"), "World");
  assert.equal(titleOf("Hi, please explain speculative decoding. I know models."), "Explain speculative decoding");
  assert.equal(titleOf("Rename `data` to `buffer`:\n```python\ndef f(): pass\n```"), "Rename data to buffer");
  assert.equal(titleOf("```python\ndef write(self):\n```\n\nWhat does it do?"), "What does it do?");
  assert.equal(titleOf("```python\ndef write(self):\n```"), "Def write(self)");
  assert.equal(titleOf("hello"), "Hello");
  assert.equal(titleOf(" "), "");
  assert.ok(titleOf("x".repeat(500)).length <= 48);
  assert.equal(titleOf("Write a Python class for a bank account, with docstrings and tests"), "Write a Python class for a bank account, with…");
});

test("files, images and sounds go to the model with what was said", () => {
  const said = (attachments) => toMessages([{ ...message("q", null, "user"), content: "What?", attachments }], "")[0].content;
  assert.equal(said([{ name: "a.py", text: "```\n" }]), "a.py:\n````py\n```\n````\n\nWhat?");
  assert.deepEqual(said([{ name: "p.png", image: "data:image/png;base64,AA" }]), [{ type: "image_url", image_url: { url: "data:image/png;base64,AA" } }, { type: "text", text: "What?" }]);
  assert.deepEqual(said([{ name: "a.wav", audio: "data:audio/wav;base64,AA" }])[0], { type: "input_audio", input_audio: { data: "AA" } });
});

test("a message goes with all below it", () => {
  assert.deepEqual(withAllBelow(tree, "a1"), ["a1", "q2", "b"]);
});

test("a conversation can be read as Markdown", () => {
  const text = asMarkdown({ title: "T", leaf: "a1", system: "Be brief." }, tree);
  assert.equal(text, "# T\n\n> Be brief.\n\n## You\n\nq\n\n## Answer\n\na1\n");
});

test("every language has every word", async () => {
  const [english, german] = await Promise.all(["en", "de"].map(async (name) => (await import(new URL(`../words/${name}.js`, WEB))).words));
  const shape = (value) => (value && typeof value === "object" && !Array.isArray(value) ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, shape(one)])) : typeof value);
  assert.deepEqual(shape(german), shape(english));
  for (const { name } of FIELDS) assert.equal(english.fields[name]?.length, 2, name);
});

test("only what was set, and is right, is sent", () => {
  const body = bodyOf({ temperature: "0", top_k: "many", stop: "one\ntwo\n", "speculative.mode": "off", json_schema: '{"type": "object"}', seed: " " });
  assert.deepEqual(body, {
    temperature: 0,
    stop: ["one", "two"],
    response_format: { type: "json_schema", json_schema: { schema: { type: "object" } } },
    speculative: { mode: "off" },
  });
});

test("a wrong field says why", () => {
  const field = (name) => FIELDS.find((one) => one.name === name);
  assert.equal(problemOf(field("top_k"), "1.5"), "must be a whole number");
  assert.match(problemOf(field("json_schema"), "{"), /is not JSON/);
  assert.equal(problemOf(field("top_p"), ""), "");
  const props = { default_generation_settings: { params: { top_p: 0.949999988079071, stop: [] } }, speculation: { mode: "auto", n_max: 32, types: ["suffix", "draft-model"] }, settings: [{ name: "reasoning_budget", value: -1 }] };
  const defaults = ["top_p", "stop", "speculative.mode", "speculative.n_max", "speculative.types", "reasoning_budget_tokens"].map((name) => defaultOf(field(name), props));
  assert.deepEqual(defaults, ["0.95", "", "auto", "32", "suffix\ndraft-model", "-1"]);
});

test("what was exported comes back under other ids", () => {
  const conversation = { id: "c", title: "T", updated: 5, leaf: "b", system: "S" };
  const [back] = importText(exportText([{ conversation, messages: [...tree.values()] }]));
  assert.notEqual(back.conversation.id, "c");
  const again = new Map(back.messages.map((one) => [one.id, one]));
  assert.deepEqual(pathTo(again, back.conversation.leaf).map((one) => one.content), ["q", "a1", "q2", "b"]);
  assert.equal(back.conversation.system, "S");
});

test("attachments, tool calls, model and settings come back, and what is wrong with them does not", () => {
  const call = { id: "c", name: "f", arguments: "{}", result: "42" };
  const file = { name: "a.txt", text: "plan" };
  const picture = { name: "p.png", image: "data:image/png;base64,AA" };
  const wrong = [null, 1, { name: "x" }, { name: 1, text: "x" }, { name: "x", image: "https://evil.example/x.png" }];
  const messages = [
    { ...message("q", null, "user"), attachments: [file, picture, ...wrong] },
    { ...message("a", "q", "assistant", 1), toolCalls: [call, null, { id: "c" }], state: "done", model: "m", reasoning: 1, finish: "stop" },
    { ...message("b", "q", "assistant", 2), state: "failed", failure: "why" },
    { ...message("d", "q", "assistant", 3), state: "running" },
    { ...message("e", "q", "assistant", 4), toolCalls: [{ ...call, result: undefined }], state: "done" },
  ];
  const [{ conversation, messages: back }] = importText(exportText([{ conversation: { id: "c", settings: { temperature: "0", top_k: 1 } }, messages }]));
  assert.deepEqual(conversation.settings, { temperature: "0" });
  assert.deepEqual(back[0].attachments, [file, picture]);
  assert.deepEqual(back[1].toolCalls, [call]);
  assert.deepEqual([back[1].model, back[1].finish, back[1].reasoning], ["m", "stop", undefined]);
  assert.deepEqual(back.map(({ state }) => state), [undefined, "done", "failed", "stopped", "stopped"]); // a file offers no command to run
  assert.equal(back[2].failure, "why");
});

test("foreign files are refused and foreign fields left out", () => {
  assert.throws(() => importText("{}"), /no exported conversations/);
  assert.throws(() => importText("x"), /not JSON/);
  const text = JSON.stringify({ format: "headstart-conversations", conversations: [{ messages: [{ id: 1, role: "evil", content: "x" }, { id: 2, role: "user", content: "ok", html: "<b>" }] }] });
  const [one] = importText(text);
  assert.equal(one.messages.length, 1);
  assert.ok(!("html" in one.messages[0]));
});

test("provenance that is kept in parts is the same again, and one that is kept whole too", async () => {
  const tokens = Array.from({ length: 2500 }, (_, id) => ({ id, piece: String(id), source: "", position: null, chance: null, step: id }));
  const steps = tokens.slice(0, 1200).map(() => ({ rows: 1, rows_wasted: 0, target_ms: 1, draft_ms: 0, draft: [] }));
  let pauses = 0;
  const parts = await packProvenance({ tokens, steps }, async () => void pauses++);
  assert.equal(parts.length, 3);
  assert.equal(pauses, 2);
  assert.deepEqual(unpackProvenance(parts), { tokens, steps });
  assert.deepEqual(unpackProvenance(JSON.stringify({ tokens, steps })), { tokens, steps });
  assert.deepEqual(unpackProvenance(await packProvenance({ tokens: [], steps: [] }, async () => {})), { tokens: [], steps: [] });
});
