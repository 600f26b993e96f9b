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

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headstart.config import option
from headstart.speculators.base import register
from headstart.speculators.base_texts import TextSpeculator, agreeing_scores
from headstart.structures.prefix import common_prefix_length
from headstart.structures.suffix_index import SuffixIndex
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


@register
class NgramMapKSpeculator(TextSpeculator[_KeyedText]):
    """Copies from the newest place of the key."""

    name = "ngram-map-k"
    Options = NgramMapOptions
    num_places: ClassVar[int] = 1  # to compare, newest first

    def history_of(self, text: Sequence[int], namespace: str) -> _KeyedText:
        return _KeyedText(self.options, text)

    def draft_for(self, history: _KeyedText, request: DraftRequest) -> Draft:
        options = self.options
        places = history.find(history.tokens, max(self.num_places, options.min_hits))
        if len(places) < options.min_hits:
            return Draft(reason="fewer hits than min-hits" if places else "")
        del places[self.num_places :]
        copies = Counter([tuple(history.copy(at, options.size_m)) for _, at in places])
        ((best, num_agreeing),) = copies.most_common(1)  # the newest of equals
        if num_agreeing < 2 * (len(places) - num_agreeing):
            return Draft(reason="no continuation dominates")
        # with several places each continuation has a limit of its own
        key: Hashable = history.key if self.num_places == 1 else (history.key, best)
        tokens = best[: min(history.length_of(key), request.max_tokens)]
        history.watch(key, tokens)
        weight = options.size_n * num_agreeing
        scores = list(agreeing_scores(weight, num_agreeing, len(tokens)))
        if scores:
            scores[0] *= num_agreeing / len(places)
        return Draft(tokens, scores)


@register
class NgramMapK4vSpeculator(NgramMapKSpeculator):
    """Copies a key's continuation if it is twice as common as all others together."""

    name = "ngram-map-k4v"
    num_places = _MAX_PLACES
