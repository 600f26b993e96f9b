/** Provenance, equality, and what the board remembers. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { WEB, provenanceOf } from "./support.mjs";

const { Provenance, pieceText } = await import(new URL("provenance.js", WEB));
const { compareTokens, verdict } = await import(new URL("equality.js", WEB));
const { History, draftLengths, positionGroups } = await import(new URL("history.js", WEB));

test("stretches of one source cover the text exactly", () => {
  const provenance = new Provenance(provenanceOf(["", "a"], ["bcd", "e"], ["", "f"]));
  assert.equal(provenance.text, "abcdef");
  const runs = provenance.runs(0, 6);
  assert.deepEqual(runs, [{ from: 0, to: 1, source: "" }, { from: 1, to: 4, source: "suffix" }, { from: 4, to: 6, source: "" }]);
  assert.deepEqual(provenance.runs(2, 3), [{ from: 2, to: 3, source: "suffix" }]);
});

test("what was drafted is marked without the white space around it", () => {
  const provenance = new Provenance(provenanceOf([" one two\n  ", " "], ["three", ""]));
  const marked = provenance.marks(0, provenance.text.length).map(({ from, to }) => provenance.text.slice(from, to));
  assert.deepEqual(marked, ["one two", "three"]);
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

test("totals count steps, drafts and what they saved; the first step reads the prompt", () => {
  const steps = [["", "a"], ...Array(6).fill(["", "x"]), ...Array(6).fill(["yyy", "z"])];
  const provenance = new Provenance(provenanceOf(...steps));
  provenance.data.steps[0].target_ms = 5000;
  const totals = provenance.totals();
  assert.equal(totals.tokens, 1 + 6 + 24);
  assert.equal(totals.saved, 18);
  assert.equal(totals.drafted, 24);
  assert.equal(totals.accepted, 18);
  assert.ok(Math.abs(totals.speedup - (30 * 10) / (6 * 10 + 6 * 12)) < 1e-9);
});

test("no speedup is claimed without plain steps to compare with", () => {
  assert.equal(new Provenance(provenanceOf(["ab", "c"], ["de", "f"])).totals().speedup, null);
  assert.ok(new Provenance(provenanceOf(["ab", "c"], ["de", "f"])).totals(10).speedup > 1);
  // where a comparison measures, an estimate beside it would only disagree
  assert.equal(new Provenance(provenanceOf(...Array(9).fill(["", "x"]), ["ab", "c"])).totals(0).speedup, null);
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
  assert.deepEqual(draftLengths([0, 2, 1]), [0, 1, 1]); // continues another's draft
});

test("the board remembers three minutes, those before it was opened too, and starts over with the engine", () => {
  const past = (time, tokens) => ({ time, tokens, num_draft_tokens: tokens, num_accepted_draft_tokens: tokens / 2 });
  const state = (time, tokens, more = {}) => ({ ...past(time, tokens), slots: [], ...more });
  const history = new History();
  history.add(state(100, 100, { history: [past(96, 96), past(98, 98), past(99.9, 99)] })); // a tenth of a second has no speed
  assert.deepEqual(history.points().map(({ time, speed }) => [time, speed]), [[98, 1], [100, 1]]);
  for (let time = 102; time < 400; time += 2) history.add(state(time, time));
  assert.equal(history.past[0].time, 398 - 180);
  assert.equal(history.points().at(-1).accepted, 0.5);
  history.add(state(400, 3));
  assert.equal(history.past.length, 1);
});

test("a slot's speed is that of its own request since the state before", () => {
  const state = (time, id_task, n_decoded) => ({ time, tokens: 0, slots: [{ id: 0, id_task, next_token: [{ n_decoded }] }] });
  const history = new History();
  history.add(state(100, 7, 20));
  assert.equal(history.speedOf(history.last.slots[0]), 0);
  history.add(state(102, 7, 50));
  assert.equal(history.speedOf(history.last.slots[0]), 15);
  history.add(state(104, 8, 60));
  assert.equal(history.speedOf(history.last.slots[0]), 0);
});

test("long drafts are grouped so that at most a dozen bars show them, and none is left out", () => {
  const groups = positionGroups(70);
  assert.deepEqual(groups.map(({ label }) => label), ["1", "2", "3", "4", "5", "6", "7", "8", "9–16", "17–32", "33–64", "65–70"]);
  assert.equal(groups.at(-1).to, 70);
  assert.deepEqual(positionGroups(0), []);
});
