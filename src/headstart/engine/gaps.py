"""Maps rows of a sequence to positions, which differ after images in models with M-RoPE.

The cells of an image share positions, so it has fewer positions than cells. Only calls of libllama
count positions; everything else counts rows.
"""

from __future__ import annotations

import struct

import numpy as np

from headstart.types import Batch

_HEAD, _GAP = struct.Struct("<H"), struct.Struct("<II")


class Gaps:
    """For all sequences of a cache: where images end, and by how much their cells outnumber their
    positions.
    """

    def __init__(self) -> None:
        self._of: dict[int, list[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def position(self, seq_id: int, row: int) -> int:
        """Position of a row of text, or of the first row of an image."""
        if seq_id not in self._of:
            return row
        return row - sum(gap for end, gap in self._of[seq_id] if end <= row)

    def num_rows(self, seq_id: int, position: int) -> int:
        """Number of rows of a sequence that ends before this position."""
        return position + sum(gap for _, gap in self._of.get(seq_id, ()))

    def add(self, seq_id: int, end: int, gap: int) -> None:
        """Record a decoded image that ends before row `end`."""
        if gap:
            self._of.setdefault(seq_id, []).append((end, gap))

    def cut(self, seq_id: int, length: int) -> None:
        if seq_id in self._of:
            self.share(seq_id, seq_id, length)

    def share(self, source: int, target: int, length: int) -> None:
        """Give `target` the first `length` rows of `source`."""
        gaps = [one for one in self._of.get(source, ()) if one[0] <= length]
        self._of.pop(target, None)
        if gaps:
            self._of[target] = gaps

    def drop(self, seq_id: int) -> None:
        self._of.pop(seq_id, None)

    def shift(self, batch: Batch, sign: int) -> None:
        """Convert the rows of a batch of text to positions (-1), or back (1)."""
        seq_ids = batch.seq_ids[: batch.num_rows]
        for seq_id in self._of.keys() & set(seq_ids.tolist()):
            total = sum(gap for _, gap in self._of[seq_id])
            batch.positions[: batch.num_rows][seq_ids == seq_id] += np.int32(sign * total)

    def pack(self, seq_id: int) -> bytes:
        """A sequence's gaps, to be stored with its state."""
        gaps = self._of.get(seq_id, [])
        return _HEAD.pack(len(gaps)) + b"".join(_GAP.pack(*gap) for gap in gaps)

    @staticmethod
    def size(data: memoryview) -> int:
        """Size in bytes of the packed gaps at the start of `data`."""
        if len(data) < _HEAD.size:
            return len(data)
        return _HEAD.size + int(_HEAD.unpack(data[: _HEAD.size])[0]) * _GAP.size

    def unpack(self, seq_id: int, data: memoryview) -> None:
        for row, gap in _GAP.iter_unpack(data[_HEAD.size : self.size(data)]):
            self.add(seq_id, row, gap)
