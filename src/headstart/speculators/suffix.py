"""Copy from where the longest end of the text occurred before: in this text or in past ones.

A copy that was left is taken up again close behind, with the changes made so far: an edit replaces the
same few things again and again (see `structures/alignment.py`).

All places found vote for the next token with the length of their match as weight; of those that win
the longest match is copied. The others confirm it or speak against it where they part from it: the
score of a token is the running product of these shares (see `structures/shares.py`), and their sum
the expected number of accepted tokens. The source with the largest sum drafts. The place copied
from stays a place to look at, so a long copy is not lost in passages that occur everywhere; once it
is as long as a match can be, no other place is looked at.

Past texts are kept per namespace and only shown to it; the public namespace is shown to all. An
earlier answer to the very same prompt is not copied: a repeated request drafts as the first did.

Sources: Oliaro et al. 2024, "SuffixDecoding", https://arxiv.org/abs/2411.04975; escape
probabilities of PPM (Cleary and Witten 1984).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from headstart.errors import ConfigError
from headstart.speculators.base import Speculator, register
from headstart.structures.alignment import Alignment
from headstart.structures.corpus import MAX_MATCH, SIZES, Answer, SuffixCorpus
from headstart.structures.histories import Histories
from headstart.structures.shares import agreeing, conditional, lone
from headstart.structures.suffix_index import Place, SuffixIndex
from headstart.structures.token_log import VocabularyId
from headstart.types import Draft, DraftRequest, Vocab
from headstart.vocabulary.variants import Variants

_Prompt = tuple[str, bytes]
"""Namespace and digest of a prompt."""

_NO_PROMPT: _Prompt = ("", b"")
_MAX_ANSWERS = 4096  # prompts whose answers are known


class _Copy(NamedTuple):
    """What one text offers."""

    source: SuffixIndex
    place: Place
    tokens: list[int]
    scores: Sequence[float]  # that a token and all before it are accepted
    worth: float  # expected accepted tokens


@register
class SuffixSpeculator(Speculator):
    """Copies from the sequence's own history and from a corpus of past texts."""

    name = "suffix"
    scores_are_probabilities = True

    @dataclass(frozen=True, slots=True)
    class Options:
        """Counts in tokens unless they say otherwise."""

        factor: float = 4.0  # longest draft per token of the longest match
        min_share: float = 0.1  # a draft ends before its expected acceptance falls below
        max_places: int = 3  # that vote
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

    def __init__(
        self, options: Options | None = None, vocabulary: VocabularyId | None = None, vocab: Vocab | None = None
    ) -> None:
        """Without `vocab` a change of a word is learned anew in each spelling."""
        self._options = options = options or self.Options()
        self._histories = Histories(SIZES, MAX_MATCH)
        self._namespaces: dict[int, str] = {}
        self._variants = None if vocab is None else Variants(vocab)
        self._alignments: dict[int, Alignment] = {}
        self._prompts: dict[int, _Prompt] = {}
        self._answers: OrderedDict[_Prompt, Answer] = OrderedDict()  # what was answered to a prompt last
        self.corpus = SuffixCorpus(options.corpus_tokens)
        if options.file:
            if vocabulary is None:
                raise ConfigError("a corpus file needs to know the vocabulary: its tokens mean nothing without")
            self.corpus = SuffixCorpus.open(Path(options.file), vocabulary, options.corpus_tokens)

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        self._histories.begin(seq_id, prompt)
        self._namespaces[seq_id] = namespace
        # The last token is already the answer's first.
        self._prompts[seq_id] = (namespace, blake2b(array("i", prompt[:-1]).tobytes(), digest_size=16).digest())
        self._alignments[seq_id] = Alignment(self._variants)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        own = self._histories.at(request.seq_id, request.tokens)
        alignment = self._alignments.get(request.seq_id)
        if alignment is None:  # it did not begin
            alignment = self._alignments[request.seq_id] = Alignment(self._variants)
        exact = alignment.exact()
        if exact is not None and exact[1].length >= MAX_MATCH:  # no other place can have a longer match
            return self._continue(*exact, alignment, request.max_tokens)
        best = self._best_copy(request, own, alignment)
        if best is None:
            return Draft(speculator=self.name, reason="no match")
        if not best.tokens:
            return Draft(speculator=self.name, reason="below min-share")
        alignment.start(best.source, best.place)
        tokens, scores = alignment.rewrite(best.tokens, conditional(best.scores))
        return Draft(tokens[: request.max_tokens], scores[: request.max_tokens], self.name)

    def _continue(self, index: SuffixIndex, place: Place, alignment: Alignment, max_tokens: int) -> Draft:
        """A long copy goes on."""
        size = min(max_tokens, int(self._options.factor * MAX_MATCH))
        source = index.copy(place.position, size)
        tokens, scores = alignment.rewrite(source, lone(place.length, size)[: len(source)])
        return Draft(tokens[:size], scores[:size], self.name)

    def _best_copy(self, request: DraftRequest, own: SuffixIndex, alignment: Alignment) -> _Copy | None:
        """The copy worth most, over all texts that this sequence may see."""
        tail, keys, best = own.tail, own.keys, None
        namespace = self._namespaces.get(request.seq_id, request.namespace)
        answer = self._answers.get(self._prompts.get(request.seq_id, _NO_PROMPT))
        for index in (own, *self.corpus.indexes(namespace)):
            places = index.find(tail, keys, self._options.max_places)
            places.sort(reverse=True)  # longest match first, newest first among equals
            if answer is not None and answer.index is index:
                places = [p for p in places if not answer.start <= p.position < answer.end]
            here = alignment.place(index)
            if here is not None and (not places or here.length > places[0].length):
                places.insert(0, here)
            if places:
                copy = self._vote(index, places, request.max_tokens)
                if best is None or copy.worth > best.worth:
                    best = copy
        return best

    def _vote(self, index: SuffixIndex, places: list[Place], max_tokens: int) -> _Copy:
        """What to copy of one index, and from where."""
        size = min(max_tokens, max(1, int(self._options.factor * places[0].length)))
        copies = [index.copy(place.position, size) for place in places]
        leader, scores = _weigh([place.length for place in places], copies)
        if scores[-1] < self._options.min_share:
            scores = [score for score in scores if score >= self._options.min_share]
        return _Copy(index, places[leader], copies[leader][: len(scores)], scores, sum(scores))

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        alignment = self._alignments.get(seq_id)
        if alignment is not None:
            alignment.follow(emitted)
        self._histories.accept(seq_id, emitted)

    def end(self, seq_id: int) -> None:
        index = self._histories.end(seq_id)
        namespace = self._namespaces.pop(seq_id, None)
        self._alignments.pop(seq_id, None)
        prompt = self._prompts.pop(seq_id, None)
        if index is None or namespace is None or prompt is None or not self._options.corpus_tokens:
            return
        if self.corpus.add(index.tokens, namespace):
            self._answers[prompt] = self.corpus.newest(namespace)
            self._answers.move_to_end(prompt)
            if len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)

    def close(self) -> None:
        self.corpus.close()

    def describe(self) -> dict[str, Any]:
        return {
            "corpus_tokens": len(self.corpus),
            "corpus_texts": self.corpus.num_texts,
            "corpus_bytes": self.corpus.num_bytes,
            "corpus_file": self._options.file,
        }


def _weigh(lengths: list[int], copies: list[list[int]]) -> tuple[int, Sequence[float]]:
    """Which copy to draft, and its scores; longest match first, no copy is empty.

    Worked example: matches of 4, 2 and 2 tokens are followed by "a b c", "a b d" and "x". "a" has 6
    votes and "x" 2, so "a b c" is drafted. Its shares are 6 / (6 + 2 + 1), for "b" 8 / (8 + 1) as
    both matches grew by one, and for "c" 6 / (6 + 4 + 1).
    """
    leader = 0
    if copies.count(copies[0]) == len(copies):
        return leader, agreeing(sum(lengths), len(copies), len(copies[0]))
    votes: dict[int, int] = {}
    for length, copy in zip(lengths, copies, strict=True):
        votes[copy[0]] = votes.get(copy[0], 0) + length
    if len(votes) > 1:
        winner = max(votes, key=votes.__getitem__)
        leader = next(i for i, copy in enumerate(copies) if copy[0] == winner)
    draft = copies[leader]
    partings = [(_num_common(draft, copy), lengths[i], copy) for i, copy in enumerate(copies) if i != leader]
    return leader, _shares(len(draft), sum(lengths), partings)


def _shares(size: int, weight: int, partings: list[tuple[int, int, list[int]]]) -> list[float]:
    """Scores of a draft of `size` tokens.

    Args:
        size: of the draft.
        weight: lengths of all matches together.
        partings: per other copy where it leaves the draft, the length of its match, its tokens.
    """
    scores: list[float] = []
    score, position, num_copies, against = 1.0, 0, len(partings) + 1, 0
    for end, length, copy in (*sorted(partings), (size, 0, ())):
        if end > position and against:
            score *= weight / (weight + against + 1)
            scores.append(score)
            weight, position, against = weight + num_copies, position + 1, 0
        if end > position:
            count = end - position
            scores += [score * share for share in agreeing(weight, num_copies, count)]
            score, weight, position = scores[-1], weight + num_copies * count, end
        weight, num_copies = weight - length - end, num_copies - 1
        against += (length + end) * (end < len(copy))  # a copy that just ended has nothing against it
    return scores


def _num_common(one: list[int], other: list[int]) -> int:
    if one == other:
        return len(one)
    for i, (token, counterpart) in enumerate(zip(one, other, strict=False)):
        if token != counterpart:
            return i
    return min(len(one), len(other))
