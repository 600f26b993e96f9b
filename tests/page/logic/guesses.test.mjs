/** Provenance, equality, and what the board remembers. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { WEB, provenanceOf } from "./support.mjs";

const { Provenance, pieceText } = await import(new URL("provenance.js", WEB));
const { compareTokens, verdict } = await import(new URL("equality.js", WEB));
const { History, draftLengths } = await import(new URL("history.js", WEB));

test("stretches of one source cover the text exactly", () => {
  const provenance = new Provenance(provenanceOf(["", "a"], ["bcd", "e"], ["", "f"]));
  assert.equal(provenance.text, "abcdef");
  const runs = provenance.runs(0, 6);
  assert.deepEqual(runs, [{ from: 0, to: 1, source: "" }, { from: 1, to: 4, source: "suffix" }, { from: 4, to: 6, source: "" }]);
  assert.deepEqual(provenance.runs(2, 3), [{ from: 2, to: 3, source: "suffix" }]);
});

test("a character that several tokens share is the last one's", () => {
  const token = (piece) => ({ id: 1, piece, source: "", position: null, chance: null, step: 0 });
  const provenance = new Provenance();
  provenance.add({ tokens: [token("a"), token([0xc3])], steps: [] });
  provenance.add({ tokens: [token([0xb6]), token("b")], steps: [] });
  assert.equal(provenance.text, "aöb");
  assert.equal(provenance.indexAt(1), 2);
  assert.equal(pieceText([0xc3]), "\\xc3");
});

test("totals count steps, guesses and what they saved; the first step reads the prompt", () => {
  const steps = [["", "a"], ...Array(6).fill(["", "x"]), ...Array(6).fill(["yyy", "z"])];
  const provenance = new Provenance(provenanceOf(...steps));
  provenance.data.steps[0].target_ms = 5000;
  const totals = provenance.totals();
  assert.equal(totals.tokens, 1 + 6 + 24);
  assert.equal(totals.saved, 18);
  assert.equal(totals.drafted, 24);
  assert.equal(totals.guessed, 18);
  assert.ok(Math.abs(totals.speedup - (30 * 10) / (6 * 10 + 6 * 12)) < 1e-9);
});

test("no speedup is claimed without plain steps to compare with", () => {
  assert.equal(new Provenance(provenanceOf(["ab", "c"], ["de", "f"])).totals().speedup, null);
  assert.ok(new Provenance(provenanceOf(["ab", "c"], ["de", "f"])).totals(10).speedup > 1);
});

test("a token's draft is that of its step", () => {
  const provenance = new Provenance(provenanceOf(["", "a"], ["bc", "d"], ["", "e"]));
  const { first, emitted, step } = provenance.draftOf(2);
  assert.equal(first, 1);
  assert.equal(emitted.length, 3);
  assert.equal(step.draft.length, 3);
});

test("answers are equal token by token or part at one", () => {
  const tokens = (text) => [...text].map((piece) => ({ id: piece.charCodeAt(0) }));
  assert.deepEqual(compareTokens(tokens("abc"), tokens("abc")), { same: 3, first: 3, second: 3, isEqual: true });
  assert.equal(compareTokens(tokens("abc"), tokens("abd")).same, 2);
  assert.equal(compareTokens(tokens("ab"), tokens("abd")).isEqual, false);
  assert.match(verdict(compareTokens(tokens("ab"), tokens("ac")), true), /must not happen/);
  assert.match(verdict(compareTokens(tokens("ab"), tokens("ac")), false), /almost equally likely/);
});

test("lengths of drafts follow from positions", () => {
  assert.deepEqual(draftLengths([5, 3, 3, 1]), [2, 0, 2, 1]);
});

test("the board remembers three minutes and starts over with the engine", () => {
  const state = (time, tokens) => ({ time, tokens, tokens_per_second: 1, num_draft_tokens: tokens, num_accepted_draft_tokens: tokens / 2, slots: [] });
  const history = new History();
  for (let time = 0; time < 400; time++) history.add(state(time, time));
  assert.equal(history.states[0].time, 399 - 180);
  assert.equal(history.columns()[2].at(-1), 50);
  history.add(state(400, 3));
  assert.equal(history.states.length, 1);
});

test("plain steps of a session say what a step costs, the newest ones only", async () => {
  const { PlainSteps } = await import(new URL("plain-steps.js", WEB));
  const plain = new PlainSteps();
  plain.add(provenanceOf(["", "a"], ["", "b"], ["xy", "c"]));
  assert.equal(plain.mean, null); // the first step reads the prompt, the third has a draft
  for (let i = 0; i < 200; i++) plain.add(provenanceOf(["", "a"], ["", "b"]));
  assert.equal(plain.mean, 10);
  assert.equal(plain.latest.length, 100);
});
