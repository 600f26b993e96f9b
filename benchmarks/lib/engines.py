"""Engines for measurements: one that is made to say a given text, one that costs simulated time,
one without a model. Draft models are not scripted: they guess the text as well as they can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from benchmarks.lib.curves import CostCurve

from headstart.testing import FakeEngine
from headstart.types import Batch, Engine, Filters, Logits
from headstart.types.sampling_params import SamplingParams

_Engine: Any = object  # attributes come from the wrapped engine, which a type cannot say


class Clock:
    """Simulated seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def spend(self, milliseconds: float) -> None:
        """Let time pass."""
        self.seconds += milliseconds / 1000.0


class PricedEngine(_Engine):  # type: ignore[misc]
    """Another engine whose decodes take simulated time: what `curve` says for their rows, and
    `attention` ms per row and 1000 tokens.
    """

    def __init__(
        self, engine: Engine, curve: CostCurve, clock: Clock, attention: float = 0.0
    ) -> None:
        self._engine = engine
        self._curve, self._clock, self._attention = curve, clock, attention

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def decode(self, batch: Batch) -> Logits:
        self.launch(batch)
        return self._engine.wait()

    def launch(self, batch: Batch) -> None:
        attended = int(batch.positions[: batch.num_rows].sum())
        self._clock.spend(self._curve(batch.num_rows) + self._attention * attended / 1000.0)
        self._engine.launch(batch)


class SilentEngine(FakeEngine):
    """`Engine` without a model, with room for everything and no cache. All logits are 0, unless
    `scripts[seq_id]` holds prompt and answer of a sequence: then the answer is fixed.

    Args:
        vocab_size: columns of the logits.
        max_outputs: rows of the logits.
        make_filters: those of a real engine, so that a draft model picks its tokens under the same
            ones.
    """

    def __init__(
        self, vocab_size: int, max_outputs: int, make_filters: Callable[[SamplingParams], Filters]
    ) -> None:
        super().__init__(vocab_size, context_size=2**20, num_cells=2**30)
        self.max_batch_tokens, self.max_outputs = 4096, max_outputs
        self.can_shift = self.has_blocks = False
        self._make_filters = make_filters
        self._logits = np.zeros((max_outputs, vocab_size), np.float32)
        self.scripts: dict[int, Sequence[int]] = {}

    def launch(self, batch: Batch) -> None:
        self._batch = batch

    def wait(self) -> Logits:
        """Raise the logit of the script's next token in every output row."""
        batch, logits = self._batch, self._logits[: self._batch.num_outputs]
        logits.fill(0.0)
        outputs = batch.wants_logits[: batch.num_rows].nonzero()[0]
        for row, at in enumerate(outputs.tolist() if self.scripts else ()):
            script = self.scripts.get(int(batch.seq_ids[at]), ())
            following = int(batch.positions[at]) + 1
            if following < len(script):
                logits[row, script[following]] = 1e4  # no sampler leaves another token
        return logits

    def make_filters(self, params: SamplingParams) -> Filters:
        return self._make_filters(params)
