"""An engine that is made to say a given text: real decodes at their real cost, the answer fixed.

With it a benchmark can use any text, also one that the model at hand would never write, and every way of drafting
gets exactly the same tokens. Draft models are not scripted: they guess the script as well as they can.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.types import Batch, Engine, Filters, Logits, MemoryKind

CERTAIN = 1e4  # added to a logit: no sampler leaves another token


class ScriptedEngine:
    """`Engine` around another one. `scripts[seq_id]` holds prompt and answer of a sequence."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.scripts: dict[int, Sequence[int]] = {}
        self.vocab_size: int = engine.vocab_size
        self.context_size: int = engine.context_size
        self.num_cells: int = engine.num_cells
        self.max_batch_tokens: int = engine.max_batch_tokens
        self.max_outputs: int = engine.max_outputs
        self.memory: MemoryKind = engine.memory
        self.max_rollback: int = engine.max_rollback

    def decode(self, batch: Batch) -> Logits:
        """Decode, then raise the logit of the token that the script has next in every output row."""
        logits = self._engine.decode(batch)
        if self.scripts:
            outputs = batch.wants_logits[: batch.num_rows].nonzero()[0]
            for row, at in enumerate(outputs.tolist()):
                script = self.scripts.get(int(batch.seq_ids[at]), ())
                following = int(batch.positions[at]) + 1
                if following < len(script):
                    logits[row, script[following]] += CERTAIN
        return logits

    def truncate(self, seq_id: int, length: int) -> bool:
        return self._engine.truncate(seq_id, length)

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        return self._engine.copy_prefix(source, target, length)

    def clear(self, seq_id: int) -> None:
        self._engine.clear(seq_id)

    def make_filters(self, params: object) -> Filters:
        return self._engine.make_filters(params)  # type: ignore[arg-type]
