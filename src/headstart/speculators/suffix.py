"""Copy from where the longest end of the text occurred before: in this text or in past ones.

All places found vote for the next token with the length of their match as weight; those outvoted
drop out and the walk goes on while the expected acceptance stays above `min_share`. The score of a
token is the running product of vote shares (see `structures/shares.py`), their sum the expected
number of accepted tokens: the source with the largest sum drafts. The place copied from stays a
place to look at, so a long copy is not lost in passages that occur everywhere.

Past texts are kept per namespace and only shown to it; the public namespace is shown to all.

Sources: Oliaro et al. 2024, "SuffixDecoding", https://arxiv.org/abs/2411.04975; escape
probabilities of PPM (Cleary and Witten 1984).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.errors import ConfigError
from headstart.speculators.base import Speculator, register
from headstart.structures.corpus import MAX_MATCH, SIZES, SuffixCorpus
from headstart.structures.histories import Histories
from headstart.structures.shares import agreeing
from headstart.structures.suffix_index import Place, SuffixIndex
from headstart.structures.token_log import VocabularyId
from headstart.types import Draft, DraftRequest


@dataclass(slots=True)
class _Source:
    """Where the last draft of a sequence came from."""

    index: SuffixIndex
    position: int
    size: int  # of the history when it was drafted


@register
class SuffixSpeculator(Speculator):
    """Copies from the sequence's own history and from a corpus of past texts."""

    name = "suffix"

    @dataclass(frozen=True, slots=True)
    class Options:
        """Counts in tokens unless they say otherwise."""

        factor: float = 4.0  # longest draft per token of the longest match
        min_share: float = 0.1  # a draft ends before its expected acceptance falls below
        max_places: int = 8  # that vote
        corpus_tokens: int = 2_000_000  # kept of past texts, over all namespaces; 0: none
        file: str | None = None  # keeps the corpus over restarts

        def __post_init__(self) -> None:
            if self.factor <= 0 or not 0.0 <= self.min_share < 1.0 or self.max_places < 1 or self.corpus_tokens < 0:
                raise ConfigError(
                    "suffix needs factor > 0, min-share in [0, 1), max-places >= 1 and corpus-tokens >= 0, got "
                    f"{self.factor}, {self.min_share}, {self.max_places} and {self.corpus_tokens}"
                )
            if self.file and not self.corpus_tokens:
                raise ConfigError("suffix has a corpus file but corpus-tokens is 0; set one or leave out the other")

    def __init__(self, options: Options | None = None, vocabulary: VocabularyId | None = None) -> None:
        self._options = options = options or self.Options()
        self._histories = Histories(SIZES, MAX_MATCH)
        self._namespaces: dict[int, str] = {}
        self._sources: dict[int, _Source] = {}
        self.corpus = SuffixCorpus(options.corpus_tokens)
        if options.file:
            if vocabulary is None:
                raise ConfigError("a corpus file needs to know the vocabulary: its tokens mean nothing without")
            self.corpus = SuffixCorpus.open(Path(options.file), vocabulary, options.corpus_tokens)

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        self._histories.begin(seq_id, prompt)
        self._namespaces[seq_id] = namespace
        self._sources.pop(seq_id, None)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        own = self._histories.at(request.seq_id, request.tokens)
        tail, keys = own.tail, own.keys
        best: tuple[list[int], Sequence[float]] = ([], ())
        best_score, source = 0.0, None
        for index in (own, *self.corpus.indexes(self._namespaces.get(request.seq_id, request.namespace))):
            places = index.find(tail, keys, self._options.max_places)
            places = self._with_last(request.seq_id, index, len(own), tail, places)
            if places:
                drafted = self._vote(index, places, request.max_tokens)
                score = sum(drafted[1])
                if score > best_score:
                    best, best_score, source = drafted, score, _Source(index, places[0].position, len(own))
        if source is None:
            self._sources.pop(request.seq_id, None)
            return Draft(speculator=self.name, reason="no match")
        self._sources[request.seq_id] = source
        return Draft(best[0], best[1], self.name)

    def _with_last(
        self, seq_id: int, index: SuffixIndex, size: int, tail: array[int], places: list[Place]
    ) -> list[Place]:
        """Longest match first, newest first among equals; the place last copied from among them."""
        source = self._sources.get(seq_id)
        if source is not None and source.index is index and size > source.size:
            position = source.position + size - source.size
            if index.floor < position < len(index) and all(place.position != position for place in places):
                length = index.match(tail, position)
                if length >= SIZES[0] and index.tokens[position] >= 0:
                    places = [*places, Place(length, position)]
        return sorted(places, reverse=True) if len(places) > 1 else places

    def _vote(self, index: SuffixIndex, places: list[Place], max_tokens: int) -> tuple[list[int], Sequence[float]]:
        """The continuation most places agree on, token by token, and its scores."""
        options = self._options
        count = min(max_tokens, max(1, int(options.factor * places[0].length)))
        copies = [index.copy(place.position, count) for place in places]
        first = copies[0]
        if all(copy == first for copy in copies):
            scores = agreeing(sum(place.length for place in places), len(places), len(first))
        else:
            first, scores = _walk([place.length for place in places], copies, count)
        if scores and scores[-1] < options.min_share:
            kept = next(i for i, score in enumerate(scores) if score < options.min_share)
            return first[:kept], scores[:kept]
        return first, scores

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        self._histories.accept(seq_id, emitted)

    def end(self, seq_id: int) -> None:
        index = self._histories.end(seq_id)
        namespace = self._namespaces.pop(seq_id, None)
        self._sources.pop(seq_id, None)
        if index is not None and namespace is not None and self._options.corpus_tokens:
            self.corpus.add(index.tokens, namespace)

    def close(self) -> None:
        self.corpus.close()

    def describe(self) -> dict[str, Any]:
        return {
            "corpus_tokens": len(self.corpus),
            "corpus_texts": self.corpus.num_texts,
            "corpus_bytes": self.corpus.num_bytes,
            "corpus_file": self._options.file,
        }


def _walk(weights: list[int], copies: list[list[int]], count: int) -> tuple[list[int], tuple[float, ...]]:
    """Follow the heaviest vote; ties go to the place listed first."""
    tokens: list[int] = []
    scores: list[float] = []
    score = 1.0
    voters = list(zip(weights, copies, strict=True))
    for i in range(count):
        votes: dict[int, int] = {}
        total = 1  # the weight of "something new"
        for weight, copy in voters:
            if i < len(copy):
                votes[copy[i]] = votes.get(copy[i], 0) + weight + i
                total += weight + i
        if not votes:
            break
        token = max(votes, key=votes.__getitem__)
        score *= votes[token] / total
        tokens.append(token)
        scores.append(score)
        voters = [voter for voter in voters if i < len(voter[1]) and voter[1][i] == token]
        if len(voters) == 1:
            weight, copy = voters[0]
            tokens += copy[i + 1 :]
            scores += [score * share for share in agreeing(weight + i + 1, 1, len(copy) - i - 1)]
            break
    return tokens, tuple(scores)
