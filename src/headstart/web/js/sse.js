/** Server-sent events from bytes. */

/** Milliseconds of work on what arrived at once, until the browser may draw and hear the user. */
const LONGEST_TURN = 12;

const encoder = new TextEncoder();

/** @typedef {{bytes: number, isOver: boolean}} Place how far a stream was read; over: up to `[DONE]` */

/**
 * The JSON values of a stream, until it ends or says `[DONE]`.
 * @param {ReadableStream<Uint8Array>} stream
 * @param {Place} [place] moves on with each value
 * @returns {AsyncGenerator<any>}
 */
export async function* readEvents(stream, place = { bytes: 0, isOver: false }) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const { events, rest: left } = splitEvents(rest + decoder.decode(value, { stream: true }));
      rest = left;
      let began = performance.now();
      for (const { data, bytes } of events) {
        place.bytes += bytes;
        place.isOver = data === "[DONE]";
        if (place.isOver) return;
        if (!data) continue;
        yield JSON.parse(data);
        if (performance.now() - began < LONGEST_TURN) continue;
        await new Promise((resume) => setTimeout(resume));
        began = performance.now();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * The data of every whole event in a text with the event's size, and what is left behind the last one.
 * Comments go; sizes are right for a server that ends lines with a line feed, as ours does.
 * @param {string} text
 * @returns {{events: {data: string, bytes: number}[], rest: string}}
 */
export function splitEvents(text) {
  const blocks = text.replaceAll("\r\n", "\n").split("\n\n");
  const rest = blocks.pop() ?? "";
  const events = blocks.map((block) => {
    const lines = block.split("\n").filter((line) => line.startsWith("data:"));
    const data = lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    return { data, bytes: encoder.encode(block).length + 2 };
  });
  return { events, rest };
}
