"""One suffix index per running sequence, kept equal to the scheduler's history."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.structures.suffix_index import SuffixIndex


class Histories:
    """Suffix indexes by sequence id; `sizes` and `max_match` as in `SuffixIndex`."""

    __slots__ = ("_indexes", "_max_match", "_sizes")

    def __init__(self, sizes: Sequence[int], max_match: int = 16) -> None:
        self._sizes = tuple(sizes)
        self._max_match = max_match
        self._indexes: dict[int, SuffixIndex] = {}

    def begin(self, seq_id: int, prompt: Sequence[int]) -> SuffixIndex:
        """Index a prompt; of a sequence that did not end, only what differs is indexed anew."""
        index = self._indexes.get(seq_id)
        if index is None:
            index = self._indexes[seq_id] = SuffixIndex(self._sizes, self._max_match)
        index.follow(prompt, is_new=True)
        return index

    def accept(self, seq_id: int, emitted: Sequence[int]) -> None:
        """Append what was emitted to the index of this sequence, if it began."""
        index = self._indexes.get(seq_id)
        if index is not None:
            index.extend(emitted)

    def at(self, seq_id: int, tokens: Sequence[int]) -> SuffixIndex:
        """The index of this sequence, made equal to `tokens` if they moved apart."""
        index = self._indexes.get(seq_id)
        if index is None:
            return self.begin(seq_id, tokens)
        index.follow(tokens)
        return index

    def end(self, seq_id: int) -> SuffixIndex | None:
        """Forget a sequence; return its index, if it has one."""
        return self._indexes.pop(seq_id, None)
