"""Repeat what followed the last n tokens before, as far as that has been right for this key.

`ngram-map-k` copies from the newest place of the key (the last n tokens). `ngram-map-k4v` compares
the m tokens after each place and copies the continuation that dominates, or declines.

Each key remembers how far its drafts held. The statistics learn from every step, whoever drafted:
a miss after a tokens lowers the key's reach to a + 1, a draft that held to its end doubles it, and
a draft cut short by somebody else says nothing, so a reach can always grow again. Scores: L / (L + i)
for the i-th token after a match of L (see `structures/shares.py`); for k4v with the weight of the
places that agree and times their share of all places.

The options are those of llama.cpp's ngram-map-k and ngram-map-k4v.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headstart.errors import ConfigError
from headstart.speculators.base import Speculator, register
from headstart.structures.histories import Histories
from headstart.structures.reach import Reach
from headstart.structures.shares import agreeing
from headstart.structures.suffix_index import Place, SuffixIndex
from headstart.types import Draft, DraftRequest

_MAX_VALUES = 4  # continuations told apart per key
_MAX_PLACES = 16  # of a key, newest first


@dataclass(frozen=True, slots=True)
class NgramMapOptions:
    """Lengths in tokens."""

    size_n: int = 12  # of a key
    size_m: int = 48  # longest draft, and what continuations are compared by
    min_hits: int = 1  # earlier places a key needs

    def __post_init__(self) -> None:
        if self.size_n < 1 or self.size_m < 1:
            raise ConfigError(f"ngram-map needs size-n and size-m of at least 1, got {self.size_n} and {self.size_m}")
        if not 1 <= self.min_hits <= _MAX_PLACES:
            raise ConfigError(f"ngram-map needs min-hits from 1 to {_MAX_PLACES}, got {self.min_hits}")


class _NgramMap(Speculator):
    """What both have in common: keys, hits and reach."""

    Options = NgramMapOptions

    def __init__(self, options: NgramMapOptions | None = None) -> None:
        self._options = options or NgramMapOptions()
        self._histories = Histories((self._options.size_n,))
        self._reaches: dict[int, Reach] = {}

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        self._histories.begin(seq_id, prompt)
        self._reaches[seq_id] = Reach(self._options.size_m)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        index = self._histories.at(request.seq_id, request.tokens)
        reach = self._reaches.get(request.seq_id)
        if reach is None:
            reach = self._reaches[request.seq_id] = Reach(self._options.size_m)
        places = index.places(_MAX_PLACES if self._options.min_hits > 1 else self._num_places)
        if len(places) < self._options.min_hits:
            reach.watch(None, ())
            return Draft(speculator=self.name, reason="fewer hits than min-hits" if places else "no match")
        tokens, scores = self._choose(index, places)
        if not tokens:
            reach.watch(None, ())
            return Draft(speculator=self.name, reason="no continuation dominates")
        key = self._key(index, tokens)
        length = min(reach.of(key), request.max_tokens)
        reach.watch(key, tokens[:length])
        return Draft(tokens[:length], scores[:length], self.name)

    _num_places: ClassVar[int]  # that `_choose` wants to see

    def _key(self, index: SuffixIndex, tokens: list[int]) -> Hashable:
        """What the reach of this draft is remembered by."""
        return index.keys[0]

    @abstractmethod
    def _choose(self, index: SuffixIndex, places: list[Place]) -> tuple[list[int], tuple[float, ...]]:
        """A continuation of size_m tokens and its scores; empty if none is good enough."""

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        self._histories.accept(seq_id, emitted)
        reach = self._reaches.get(seq_id)
        if reach is not None:
            reach.learn(emitted)

    def end(self, seq_id: int) -> None:
        self._histories.end(seq_id)
        self._reaches.pop(seq_id, None)


@register
class NgramMapKSpeculator(_NgramMap):
    """Copies from the newest place of the key."""

    name = "ngram-map-k"
    _num_places = 4  # a few, in case others share the table slot

    def _choose(self, index: SuffixIndex, places: list[Place]) -> tuple[list[int], tuple[float, ...]]:
        length, position = places[0]
        return index.copy(position, self._options.size_m), agreeing(length, 1, self._options.size_m)


@register
class NgramMapK4vSpeculator(_NgramMap):
    """Copies the continuation of the key that is at least twice as common as the others together."""

    name = "ngram-map-k4v"
    _num_places = _MAX_PLACES

    def _key(self, index: SuffixIndex, tokens: list[int]) -> Hashable:
        return index.keys[0], tuple(tokens)

    def _choose(self, index: SuffixIndex, places: list[Place]) -> tuple[list[int], tuple[float, ...]]:
        values: dict[tuple[int, ...], list[int]] = {}  # continuation -> match lengths
        for length, position in places:
            value = tuple(index.copy(position, self._options.size_m))
            if value in values or len(values) < _MAX_VALUES:
                values.setdefault(value, []).append(length)
        best = max(values, key=lambda value: len(values[value]))
        num_best, num_all = len(values[best]), sum(map(len, values.values()))
        if num_best < 2 * (num_all - num_best):
            return [], ()
        share = num_best / num_all
        return list(best), tuple(share * score for score in agreeing(sum(values[best]), num_best, len(best)))
