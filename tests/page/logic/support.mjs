/** The page's modules, from where they are served. */
export const WEB = new URL("../../../src/headstart/web/js/", import.meta.url);

/** Tokens and steps as the server sends them: each entry is one step, [drafted text, own text]. */
export function provenanceOf(...steps) {
  const data = { tokens: [], steps: [] };
  for (const [step, [drafted, own]] of steps.entries()) {
    const draft = [...drafted, ...(drafted ? "?" : "")].map((piece) => ({ id: piece.codePointAt(0), piece, source: "suffix", chance: 0.5 }));
    data.steps.push({ rows: 1 + draft.length, rows_wasted: drafted ? 1 : 0, target_ms: drafted ? 12 : 10, draft_ms: 0, draft });
    for (const [position, piece] of [...drafted].entries())
      data.tokens.push({ id: piece.codePointAt(0), piece, source: "suffix", position, chance: 0.5, step });
    for (const piece of own) data.tokens.push({ id: piece.codePointAt(0), piece, source: "", position: null, chance: null, step });
  }
  return data;
}
