"""States of sequences at chosen lengths, for caches that cannot be truncated to any length.

Plain bytes and arithmetic, independent of libllama. Sequences with a common prefix share its
checkpoints, which are immutable.
"""

from __future__ import annotations

import struct

from headstart.types import Bytes, Checkpoint, SavedState

Data = Bytes | SavedState  # of a cache: of some of its tokens, or of a whole sequence


class Checkpoints:
    """The checkpoints of all sequences of one cache.

    Args:
        per_sequence: maximum checkpoints of one sequence; 0 disables them.
        max_bytes: maximum total bytes.
    """

    def __init__(self, per_sequence: int, max_bytes: int) -> None:
        self.per_sequence, self.max_bytes = per_sequence, max_bytes
        self._of: dict[int, list[Checkpoint]] = {}
        self._brief: dict[int, Checkpoint] = {}  # of sequences whose next tokens are a draft

    @property
    def num_bytes(self) -> int:
        """Total bytes; shared checkpoints count once."""
        unique = {id(c): len(c.data) for kept in self._of.values() for c in kept}
        return sum(unique.values()) + sum(len(c.data) for c in self._brief.values())

    def of(self, seq_id: int) -> list[Checkpoint]:
        """The checkpoints of one sequence, shortest first."""
        return list(self._of.get(seq_id, ()))

    def has(self, seq_id: int, length: int) -> bool:
        return any(c.length == length for c in self._of.get(seq_id, ()))

    def best(self, seq_id: int, length: int) -> Checkpoint | None:
        """The longest checkpoint of at most `length` tokens."""
        kept = self._of.get(seq_id, ())
        if brief := self._brief.get(seq_id):
            kept = sorted([*kept, brief], key=lambda c: c.length)
        fitting = [c for c in kept if c.length <= length]
        return fitting[-1] if fitting else None

    def add(self, seq_id: int, checkpoint: Checkpoint) -> None:
        """Add a checkpoint; if there are too many, drop those whose loss costs least."""
        if not self.per_sequence or len(checkpoint.data) > self.max_bytes:
            return
        kept = [c for c in self._of.get(seq_id, ()) if c.length != checkpoint.length]
        self._of[seq_id] = sorted([*kept, checkpoint], key=lambda c: c.length)
        while len(self._of[seq_id]) > self.per_sequence:
            _drop_least(self._of[seq_id], checkpoint)
        while self.num_bytes > self.max_bytes:
            _drop_least(max(self._of.values(), key=_size), checkpoint)

    def is_before_draft(self, seq_id: int, length: int) -> bool:
        """Whether the sequence has a brief checkpoint at this length."""
        return seq_id in self._brief and self._brief[seq_id].length == length

    def drop_brief(self, seq_id: int) -> None:
        self._brief.pop(seq_id, None)

    def add_brief(self, seq_id: int, checkpoint: Checkpoint) -> bool:
        """Keep a checkpoint until the next brief one; returns False if there is no room."""
        self.drop_brief(seq_id)
        others = sum(len(c.data) for c in self._brief.values())
        if not self.per_sequence or others + len(checkpoint.data) > self.max_bytes:
            return False
        self._brief[seq_id] = checkpoint
        return True

    def cut(self, seq_id: int, length: int) -> None:
        """Drop the checkpoints beyond `length` after a truncation."""
        self._of[seq_id] = [c for c in self._of.get(seq_id, ()) if c.length <= length]
        if (brief := self._brief.get(seq_id)) and brief.length > length:
            del self._brief[seq_id]

    def share(self, source: int, target: int, length: int) -> None:
        """Give `target` the checkpoints of the first `length` tokens of `source`."""
        self._of[target] = [c for c in self._of.get(source, ()) if c.length <= length]

    def drop(self, seq_id: int) -> None:
        self._of.pop(seq_id, None)
        self._brief.pop(seq_id, None)


def _size(kept: list[Checkpoint]) -> int:
    return sum(len(c.data) for c in kept)


def _drop_least(kept: list[Checkpoint], newest: Checkpoint) -> None:
    """Drop the checkpoint whose loss costs fewest tokens: the one closest to its predecessor.

    The newest is kept unless it is the only one, so that many sequences cannot starve one another.
    """
    starts = [0, *(c.length for c in kept)]
    gaps = [(c.length - start, c) for start, c in zip(starts, kept, strict=False)]
    others = [(gap, c) for gap, c in gaps if c is not newest]
    kept.remove(min(others or gaps, key=lambda pair: pair[0])[1])


_MAGIC = b"headstart sequence 1\n"
# magic and number of parts; of each a length in tokens and a size
_HEAD, _PART = struct.Struct("<21sI"), struct.Struct("<QQ")


def pack(data: Data) -> list[Bytes]:
    """Serialize a saved sequence, without copies: parts to be joined. Bytes stay as they are."""
    if not isinstance(data, SavedState):
        return [data]
    sizes = [(0, len(data.state)), *((c.length, len(c.data)) for c in data.checkpoints)]
    head = _HEAD.pack(_MAGIC, len(sizes)) + b"".join(_PART.pack(*one) for one in sizes)
    return [head, *data.parts]


def unpack(data: Bytes) -> SavedState | None:
    """A saved sequence from the bytes of `pack`; None if they are something else. Its parts are
    copies, because a checkpoint may be kept longer than the others.
    """
    view, parts = memoryview(data), list[Checkpoint]()
    if bytes(view[: len(_MAGIC)]) != _MAGIC or len(view) < _HEAD.size:
        return None
    _, count = _HEAD.unpack(view[: _HEAD.size])
    at = _HEAD.size + _PART.size * count
    for length, size in _PART.iter_unpack(view[_HEAD.size : at] if at <= len(view) else b""):
        parts.append(Checkpoint(length, bytes(view[at : at + size])))
        at += size
    if not parts or at > len(view):
        return None
    return SavedState(parts[0].data, tuple(parts[1:]), bytes(view[at:]))
