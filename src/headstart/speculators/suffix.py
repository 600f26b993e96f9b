"""Copies from where the longest end of the text occurred before, in this text or past ones.

After a difference the copy resumes close behind it, with the changes made so far: an edit often
replaces the same few things repeatedly (see `suffix_alignment.py`).

All places found vote for the next token, weighted by match length; of the winners the longest match
is copied. The others count for it, or against it from where they differ: the score of a token is
its share of the votes (see `base_texts.py`), and the sum of the running products is the expected
number of accepted tokens. The source with the largest sum is used. The current place stays a
candidate, so that a long copy survives common passages; once its match has the maximum length, no
other place is considered.

Past texts are visible to their namespace only; those of the public namespace to all.

Sources: Oliaro et al. 2024, "SuffixDecoding", https://arxiv.org/abs/2411.04975; escape
probabilities of PPM (Cleary and Witten 1984).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, takewhile
from operator import itemgetter, mul
from pathlib import Path
from typing import Any

from headstart.config import option
from headstart.speculators.base import register
from headstart.speculators.base_texts import MIN_SHARE, TextSpeculator, agreeing_scores
from headstart.speculators.suffix_alignment import Alignment
from headstart.structures.corpus import MAX_MATCH, SIZES, SuffixCorpus
from headstart.structures.prefix import common_prefix_length
from headstart.structures.suffix_index import SLICE, Place, SuffixIndex
from headstart.structures.text_store import TextStore
from headstart.text.vocabulary.variants import variants
from headstart.types import NO_DRAFT, Draft, DraftRequest, Vocab
from headstart.types.errors import ConfigError

_Copy = tuple[float, SuffixIndex, Place, list[int], Sequence[float]]
"""Expected accepted tokens; source: index, (match length, position); tokens, and the conditional
probability of each.
"""


class _AlignedText(SuffixIndex):
    """A text, and its position in the one that it copies."""

    __slots__ = ("alignment", "namespace")

    def __init__(self, text: Sequence[int], alignment: Alignment, namespace: str) -> None:
        self.alignment, self.namespace = alignment, namespace
        super().__init__(SIZES, MAX_MATCH, text=text)

    def extend(self, new: Sequence[int]) -> None:
        self.alignment.follow(new)
        super().extend(new)


_FACTOR = 4  # maximum draft length per token of the longest match


@register
class SuffixSpeculator(TextSpeculator[_AlignedText]):
    """Copies from the sequence's own history and from a corpus of past texts."""

    name = "suffix"

    @dataclass(frozen=True, slots=True)
    class Options:
        """Counts in tokens unless stated otherwise."""

        corpus_tokens: int = option(
            2_000_000, "tokens of past texts kept, of all users; 0: none", least=0
        )
        file: str | None = option(
            None,
            "file that keeps the corpus of past texts over restarts",
            "--spec-corpus",
        )

        def __post_init__(self) -> None:
            if self.file and not self.corpus_tokens:
                raise ConfigError(
                    "suffix has a corpus file but corpus-tokens is 0; set one or leave out the "
                    "other"
                )

    def __init__(self, options: Options | None = None, vocab: Vocab | None = None) -> None:
        """Without `vocab`, changes of a word are learned separately for each spelling, and no
        corpus file is possible.
        """
        super().__init__(options)
        options = self.options
        self._variants = None if vocab is None else partial(variants, vocab)
        store = None
        if options.file:
            assert vocab is not None
            store = TextStore(Path(options.file), vocab)
        self.corpus = SuffixCorpus(options.corpus_tokens, store)

    def history_of(self, text: Sequence[int], namespace: str) -> _AlignedText:
        return _AlignedText(text, Alignment(self._variants), namespace)

    def draft_for(self, history: _AlignedText, request: DraftRequest) -> Draft:
        alignment = history.alignment
        # no other place can have a longer match
        place = alignment.exact() if alignment.run >= MAX_MATCH else None
        if place is not None and alignment.index is not None:
            length, position = place
            size = min(request.max_tokens, _FACTOR * MAX_MATCH)
            tokens = alignment.index.copy(position, size)
            scores: Sequence[float] = agreeing_scores(length, 1, len(tokens))
        else:
            indexes = (history, *self.corpus.indexes(request.namespace))
            best = self._best_copy(history, indexes, request.max_tokens)
            if best is None:
                return NO_DRAFT
            _, index, start, tokens, scores = best
            alignment.start(index, start)
        return Draft(*alignment.rewrite(tokens, scores, request.max_tokens))

    def _best_copy(
        self, history: _AlignedText, indexes: Sequence[SuffixIndex], max_tokens: int
    ) -> _Copy | None:
        """The most valuable copy, over all texts visible to this sequence."""
        alignment, best = history.alignment, None
        for index in indexes:
            places = index.find(history.tokens, 3)  # that vote on the next token
            if len(places) > 1:
                places.sort(reverse=True)  # longest match first, then newest first
            if alignment.index is index:
                here = alignment.place(places[0][0] if places else 0)
                if here is not None:
                    places.insert(0, here)
            if places:
                best = self._vote(index, places, max_tokens, best)
        return best

    def _vote(
        self,
        index: SuffixIndex,
        places: Sequence[Place],
        max_tokens: int,
        best: _Copy | None,
    ) -> _Copy:
        """The best copy from one index, or the best so far if that is worth as much."""
        longest, weight = places[0][0], sum(map(itemgetter(0), places))
        size = min(max_tokens, _FACTOR * longest)
        if best is not None and _weigh(size, weight, len(places), ())[1] <= best[0]:
            return best  # even if all places agree
        chosen = _winner(index, places) if 2 * longest < weight else 0
        tokens = index.copy(places[chosen][1], size)
        partings = _partings(index, places, chosen, tokens) if len(places) > 1 else ()
        match_scores, total, least = _weigh(len(tokens), weight, len(places), partings)
        if least < MIN_SHARE:
            is_enough = MIN_SHARE.__le__
            scores = [*takewhile(is_enough, accumulate(match_scores, mul))]
            tokens, match_scores, total = (
                tokens[: len(scores)],
                match_scores[: len(scores)],
                sum(scores),
            )
        if best is not None and total <= best[0]:
            return best
        return total, index, places[chosen], tokens, match_scores

    def go_on(self) -> None:
        if self.corpus.unfinished:
            self.corpus.go_on(2 * SLICE)  # all that is added must be linked, and compacted

    def end_private(self, seq_id: int) -> None:
        self.end(seq_id, is_private=True)

    def end(self, seq_id: int, *, is_private: bool = False) -> None:
        text = self.histories.pop(seq_id, None)
        if text is None:
            return
        text.alignment.stop()  # it may copy itself; only the collector frees such a cycle, and late
        if self.options.corpus_tokens:
            self.corpus.add(text.tokens, text.namespace, is_private=is_private)

    def close(self) -> None:
        self.corpus.close()

    def describe(self) -> dict[str, Any]:
        return {
            "corpus_tokens": self.corpus.num_tokens,
            "corpus_texts": self.corpus.num_texts,
            "corpus_bytes": self.corpus.num_bytes,
            "corpus_file": self.options.file,
        }


def _winner(index: SuffixIndex, places: Sequence[Place]) -> int:
    """The longest match among those whose next token has the most votes."""
    tokens = index.tokens
    firsts = [tokens[position] for _, position in places]
    if firsts.count(firsts[0]) == len(firsts):
        return 0
    votes = dict.fromkeys(firsts, 0)
    for token, (length, _) in zip(firsts, places, strict=True):
        votes[token] += length
    return firsts.index(max(votes, key=votes.__getitem__))


_Parting = tuple[int, int, bool]
"""Position in the draft where a copy diverges or ends, its match length there, and whether it
diverges.
"""


def _partings(
    index: SuffixIndex, places: Sequence[Place], chosen: int, draft: list[int]
) -> tuple[_Parting, ...]:
    """Partings of the other copies from the draft, sorted."""
    partings, first = [], draft[0]
    for i, (length, position) in enumerate(places):
        if i == chosen:
            continue
        if index.tokens[position] != first:
            partings.append((0, length, True))
            continue
        copy = index.copy(position, len(draft))
        if copy != draft:
            end = common_prefix_length(draft, copy)
            partings.append((end, length + end, end < len(copy)))
    partings.sort()
    return tuple(partings)


@lru_cache(maxsize=4096)
def _weigh(
    size: int, weight: int, num_places: int, partings: tuple[_Parting, ...]
) -> tuple[Sequence[float], float, float]:
    """Score a draft of `size` tokens; `weight` is the total length of all matches.

    Returns the conditional probability of each token, the sum of their running products and the
    last of these.

    Worked example: matches of 4, 2 and 2 tokens are followed by "a b c", "a b d" and "x". "a" has 6
    votes and "x" 2, so "a b c" is drafted. Its shares are 6 / (6 + 2 + 1), for "b" 8 / (8 + 1) as
    both matches grew by one, and for "c" 6 / (6 + 4 + 1).
    """
    match_scores: list[float] = []
    against = 0
    for end, length, differs in (*partings, (size, 0, False)):
        if end > len(match_scores) and against:
            match_scores.append(weight / (weight + against + 1))
            weight, against = weight + num_places, 0
        count = end - len(match_scores)
        if count > 0:
            match_scores += agreeing_scores(weight, num_places, count)
            weight += num_places * count
        weight, num_places = weight - length, num_places - 1
        if differs:
            against += length
    scores = list(accumulate(match_scores, mul))
    return tuple(match_scores), sum(scores), scores[-1]
