/** Streams, alignment of shown with written text, words. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { WEB } from "./support.mjs";

const { readEvents, splitEvents } = await import(new URL("sse.js", WEB));
const { align } = await import(new URL("align.js", WEB));
const { rankedReasons, reasonInWords, size } = await import(new URL("format.js", WEB));

test("events come out whole, however the bytes are cut", async () => {
  const bytes = new TextEncoder().encode(': ping\n\ndata: {"a": "ö"}\n\ndata: {"b": 2}\r\n\r\ndata: [DONE]\n\ndata: {"c": 3}\n\n');
  for (const size of [1, 2, 7, 1000]) {
    const stream = new ReadableStream({
      start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
        controller.close();
      },
    });
    const found = [];
    const places = [];
    const place = { bytes: 0, isOver: false };
    for await (const value of readEvents(stream, place)) {
      found.push(value);
      places.push(place.bytes);
    }
    assert.deepEqual(found, [{ a: "ö" }, { b: 2 }]);
    assert.ok(place.isOver);
    assert.equal(new TextDecoder().decode(bytes.slice(places[0], places[0] + 9)), 'data: {"b');
  }
});

test("what is behind the last event stays", () => {
  assert.deepEqual(splitEvents("data: 1\n\ndata: 2"), { events: [{ data: "1", bytes: 9 }], rest: "data: 2" });
});

function shownParts(written, ...shown) {
  let cursor = 0;
  return shown.map((text) => {
    const found = align(text, written, cursor);
    cursor = found.cursor;
    return found.stretches.map(({ start, end, offset }) => {
      assert.equal(text.slice(start, end), written.slice(offset, offset + end - start));
      return offset;
    });
  });
}

test("shown text is found behind Markdown's marks", () => {
  assert.deepEqual(shownParts("a **bold** [link](http://a.b) end", "a ", "bold", "link", " end"), [[0], [4], [12], [29]]);
});

test("an escape or an entity does not lose the rest", () => {
  const written = "1 \\* 2 &amp; 3";
  const [parts] = shownParts(written, "1 * 2 & 3");
  assert.equal(parts[0], 0);
  assert.equal(parts.at(-1), written.length - 2);
});

test("white space between elements is nobody's, but white space in code is", () => {
  assert.deepEqual(align("\n", "one\n\ntwo", 1), { stretches: [], cursor: 1 });
  assert.deepEqual(align(" ", "def f", 3).stretches, [{ start: 0, end: 1, offset: 3 }]);
});

test("text that is not there is not found, and the cursor stays", () => {
  assert.deepEqual(align("xyz", "abc", 1), { stretches: [], cursor: 1 });
});

test("reasons are ranked and said in sentences; unknown ones stay as they are", () => {
  const ranked = rankedReasons({ "no match": 1, "below break-even": 3 });
  assert.equal(ranked[0].share, 0.75);
  assert.match(ranked[0].words, /more time than it was expected to save/);
  assert.equal(reasonInWords("something new"), "something new");
});

test("sizes have the unit that people say", () => {
  assert.equal(size(512), "512 bytes");
  assert.equal(size(5 * 2 ** 20), "5.0 MiB");
  assert.equal(size(300 * 2 ** 30), "300 GiB");
});
