"""Repeats what followed the last n tokens before, as far as that has been right for this key.

`ngram-map-k` copies from the newest place of the key (the last n tokens). `ngram-map-k4v` compares
the m tokens after each place and copies the continuation that dominates, or declines.

Each key remembers how far its drafts were right in this request. The statistics learn from every
step, even of other speculators' drafts: a miss after a tokens sets the key's limit to a + 1, a
draft that was right to its end doubles it, and a draft that was cut short is ignored, so a limit
can always recover. Scores: n / (n + 1), (n + 1) / (n + 2) ... (see `base_texts.py`); for k4v h * n
/ (h * n + 1) ... with the h places that agree, the first times their share of all places.

The options are those of llama.cpp's ngram-map-k and ngram-map-k4v.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headstart.config import option
from headstart.speculators.base import register
from headstart.speculators.base_texts import TextSpeculator, agreeing_scores
from headstart.structures.prefix import common_prefix_length
from headstart.structures.suffix_index import Place, SuffixIndex
from headstart.types import Draft, DraftRequest

_MAX_PLACES = 8  # places per key to compare, newest first
MAX_KEYS = 4096  # with known limits


@dataclass(frozen=True, slots=True)
class NgramMapOptions:
    """Lengths in tokens."""

    size_n: int = option(12, "tokens of a key", least=1)
    size_m: int = option(
        48,
        "longest draft, in tokens; ngram-map-k4v compares continuations of this length",
        least=1,
        limits_draft=True,
    )
    min_hits: int = option(
        1, "minimum number of earlier occurrences of a key", least=1, most=_MAX_PLACES
    )


class _KeyedText(SuffixIndex):
    """A text, and a limit for drafts of each key: from 1 to `longest` tokens, initially `longest`.

    A miss after a tokens sets a + 1 (one more than was right, so that the key is tried again); a
    draft that was right to its end doubles it; one seen only in part is ignored.
    """

    __slots__ = ("_guess", "_guessed", "_lengths", "_longest")

    def __init__(self, options: NgramMapOptions, text: Sequence[int]) -> None:
        self._longest = options.size_m
        self._lengths: dict[Hashable, int] = {}
        self._guessed: Hashable = None
        self._guess: Sequence[int] = ()
        super().__init__((options.size_n,), options.size_n, text=text)

    def length_of(self, key: Hashable) -> int:
        return self._lengths.get(key, self._longest)

    def watch(self, key: Hashable, guess: Sequence[int]) -> None:
        """Compare this guess with the next tokens; an empty one is ignored."""
        self._guessed, self._guess = key, guess

    def extend(self, new: Sequence[int]) -> None:
        super().extend(new)
        guess, self._guess = self._guess, ()
        if not guess:
            return
        num_right = common_prefix_length(list(new), list(guess))
        if num_right == len(guess):
            self._set(min(self._longest, 2 * max(num_right, self.length_of(self._guessed))))
        elif num_right < len(new):
            self._set(min(self._longest, num_right + 1))

    def _set(self, length: int) -> None:
        if len(self._lengths) >= MAX_KEYS and self._guessed not in self._lengths:
            del self._lengths[next(iter(self._lengths))]
        self._lengths[self._guessed] = length


_Continuation = tuple[int, int, int, Hashable]
"""A place to copy from, how many of how many places agree with it, and the key of its limit."""


class _NgramMap(TextSpeculator[_KeyedText]):
    """Base of both variants: keys, hits and the limit of each key."""

    Options = NgramMapOptions

    def __init__(self, options: NgramMapOptions | None = None) -> None:
        super().__init__()
        self._options = options or NgramMapOptions()

    def history_of(self, text: Sequence[int], namespace: str) -> _KeyedText:
        return _KeyedText(self._options, text)

    def draft_for(self, history: _KeyedText, request: DraftRequest) -> Draft:
        places = history.places(max(self._num_places, self._options.min_hits))
        if len(places) < self._options.min_hits:
            return Draft(reason="fewer hits than min-hits" if places else "")
        choice = self._choose(history, places)
        if choice is None:
            return Draft(reason="no continuation dominates")
        position, num_agreeing, num_places, key = choice
        tokens = history.copy(position, min(history.length_of(key), request.max_tokens))
        history.watch(key, tokens)
        scores = list(
            agreeing_scores(self._options.size_n * num_agreeing, num_agreeing, len(tokens))
        )
        if scores:
            scores[0] *= num_agreeing / num_places
        return Draft(tokens, scores)

    _num_places: ClassVar[int]  # requested by `_choose`

    @abstractmethod
    def _choose(self, index: SuffixIndex, places: list[Place]) -> _Continuation | None:
        """The place to copy from; None if none is good enough."""


@register
class NgramMapKSpeculator(_NgramMap):
    """Copies from the newest place of the key."""

    name = "ngram-map-k"
    _num_places = 1

    def _choose(self, index: SuffixIndex, places: list[Place]) -> _Continuation | None:
        return places[0][1], 1, 1, index.key


@register
class NgramMapK4vSpeculator(_NgramMap):
    """Copies a key's continuation if it is twice as common as all others together."""

    name = "ngram-map-k4v"
    _num_places = _MAX_PLACES

    def _choose(self, index: SuffixIndex, places: list[Place]) -> _Continuation | None:
        size_m = self._options.size_m
        values: dict[bytes, list[int]] = {}  # continuation -> its positions, newest first
        for _, position in places:
            value = index.tokens[position : position + size_m]
            if len(value) < size_m:
                value = array("i", index.copy(position, size_m))
            values.setdefault(value.tobytes(), []).append(position)
        best = max(values, key=lambda value: len(values[value]))
        num_best = len(values[best])
        if num_best < 2 * (len(places) - num_best):
            return None
        return values[best][0], num_best, len(places), (index.key, best)
