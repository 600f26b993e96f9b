"""What an engine computed for each text: to tell rounding from rows that read a wrong state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.sampler import Sampler
from headstart.types import Batch, Logits, SavedState
from headstart.types.request import Request

ROUNDING = 0.01  # most that a logit changes with the width of a batch, their deviation being 1
# Share of rows to which that applies. In the others a choice inside the model falls the other way:
# which experts a token is given to, or which tokens sparse attention looks at.
NOT_DISCRETE = 0.9


class RecordedRows:
    """Logits by the text that they stand behind, of every decode from now on."""

    def __init__(self, engine: Any) -> None:
        """Listen to what a scheduler decodes with this engine."""
        self.rows: dict[tuple[int, ...], list[NDArray[np.float32]]] = defaultdict(list)
        self._engine = engine
        self._texts: dict[int, list[int]] = defaultdict(list)
        self._saved: dict[bytes, list[int]] = {}
        names = ["launch", "wait", "copy_prefix", "save_sequence", "restore_sequence"]
        names += ["save_block", "restore_block"]
        self._plain: dict[str, Any] = {name: getattr(engine, name) for name in names}
        for name in names:
            setattr(engine, name, getattr(self, name))

    def launch(self, batch: Batch) -> None:
        self._plain["launch"](batch)
        self._batch = batch

    def wait(self) -> Logits:
        batch, logits = self._batch, self._plain["wait"]()
        outputs = iter(logits.copy())
        for row in range(batch.num_rows):
            text, position = self._texts[int(batch.seq_ids[row])], int(batch.positions[row])
            text[position:] = [int(batch.tokens[row])]
            if batch.wants_logits[row]:
                self.rows[tuple(text)].append(next(outputs))
        return logits

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        self._texts[target] = self._texts[source][:length]
        return bool(self._plain["copy_prefix"](source, target, length))

    def save_sequence(self, seq_id: int) -> SavedState:
        data: SavedState = self._plain["save_sequence"](seq_id)
        self._saved[bytes(data.state)] = list(self._texts[seq_id])
        return data

    def restore_sequence(self, seq_id: int, data: SavedState) -> int:
        self._texts[seq_id] = list(self._saved[bytes(data.state)])
        length: int = self._plain["restore_sequence"](seq_id, data)
        return length

    def save_block(self, seq_id: int, start: int, end: int) -> bytearray:
        data: bytearray = self._plain["save_block"](seq_id, start, end)
        self._saved[bytes(data)] = self._texts[seq_id][start:end]
        return data

    def restore_block(self, seq_id: int, data: bytes | bytearray | memoryview) -> bool:
        self._texts[seq_id] = self._texts[seq_id] + self._saved[bytes(data)]
        return bool(self._plain["restore_block"](seq_id, data))

    def differences(self, other: RecordedRows) -> NDArray[np.float32]:
        """Of each text that both have computed, by how much a logit differs at most."""
        both = self.rows.keys() & other.rows.keys()
        return np.array(
            [
                max(np.abs(a - b).max() for a in self.rows[text] for b in other.rows[text])
                for text in both
            ],
            np.float32,
        )

    def unchosen(self, request: Request, tokens: Sequence[int]) -> list[int]:
        """Places of an answer whose token no row behind the text before it would choose."""
        sampler = Sampler(request.sampling, self._engine, ())
        sampler.read(request.prompt)
        wrong = []
        for place, token in enumerate(tokens):
            text = (*request.prompt, *tokens[:place])
            if token not in (sampler.sample(row, len(text)) for row in self.rows.get(text, ())):
                wrong.append(place)
            sampler.read((token,))
        return wrong
