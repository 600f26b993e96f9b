/** An answer that is followed: how often it is asked for, and what is said in the end. */
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { WEB } from "./support.mjs";

const { Answer, follow } = await import(new URL("answer.js", WEB));
const { words } = await import(new URL("words.js", WEB));

const { fetch, setTimeout } = globalThis;
afterEach(() => Object.assign(globalThis, { fetch, setTimeout }));

/** How often a server is asked that answers so, and what is thrown in the end. */
async function asked(...statuses) {
  let count = 0;
  globalThis.sessionStorage = { getItem: () => null };
  globalThis.setTimeout = (act) => queueMicrotask(act); // no pause
  globalThis.fetch = async () => {
    const status = statuses[Math.min(count++, statuses.length - 1)];
    if (count > 2000) throw new Error("for ever");
    return new Response(JSON.stringify({ error: { message: "Loading model" } }), { status });
  };
  const error = await follow("id", new Answer(), new AbortController().signal, () => {}).catch((one) => one);
  return { count, error };
}

test("an answer whose model is never loaded is given up, with what the server says", async () => {
  const { count, error } = await asked(503);
  assert.ok(count > 100 && count < 1000);
  assert.equal(error.message, words.stillBusy("Loading model"));
});

test("an answer that no server knows is soon given up, also where its model was being loaded", async () => {
  const { count, error } = await asked(503, 503, 404);
  assert.equal(count, 2 + 5);
  assert.equal(error.status, 404);
});
