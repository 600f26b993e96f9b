/** Server-sent events from bytes. */

/** Milliseconds of work on what arrived at once, until the browser may draw and hear the user. */
const LONGEST_TURN = 12;

/**
 * The JSON values of a stream, until it ends or says `[DONE]`.
 * @param {ReadableStream<Uint8Array>} stream
 * @returns {AsyncGenerator<any>}
 */
export async function* readEvents(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const { data, rest: left } = splitEvents(rest + decoder.decode(value, { stream: true }));
      rest = left;
      let began = performance.now();
      for (const one of data) {
        if (one === "[DONE]") return;
        yield JSON.parse(one);
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
 * The data of every whole event in a text, and what is left behind the last one. Comments go.
 * @param {string} text
 * @returns {{data: string[], rest: string}}
 */
export function splitEvents(text) {
  const blocks = text.replaceAll("\r\n", "\n").split("\n\n");
  const rest = blocks.pop() ?? "";
  const data = blocks
    .map((block) =>
      block
        .split("\n")
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).replace(/^ /, ""))
        .join("\n"),
    )
    .filter((one) => one !== "");
  return { data, rest };
}
