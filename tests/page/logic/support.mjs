/** The page's modules, from where they are served. */
export const WEB = new URL("../../../src/headstart/web/js/", import.meta.url);

/** Tokens and steps as the server sends them: each entry is one step, [guessed text, own text]. */
export function provenanceOf(...steps) {
  const data = { tokens: [], steps: [] };
  for (const [step, [guessed, own]] of steps.entries()) {
    const draft = [...guessed, ...(guessed ? "?" : "")].map((piece) => ({ id: piece.codePointAt(0), piece, source: "suffix", chance: 0.5 }));
    data.steps.push({ rows: 1 + draft.length, rows_wasted: guessed ? 1 : 0, target_ms: guessed ? 12 : 10, draft_ms: 0, draft });
    for (const [position, piece] of [...guessed].entries())
      data.tokens.push({ id: piece.codePointAt(0), piece, source: "suffix", position, chance: 0.5, step });
    for (const piece of own) data.tokens.push({ id: piece.codePointAt(0), piece, source: "", position: null, chance: null, step });
  }
  return data;
}
