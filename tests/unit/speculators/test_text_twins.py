"""Speculators that learn on the way agree with slow twins that read the whole history at every
step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.speculators.text_support import propose

from headstart.speculators import ngram_map
from headstart.speculators.base import Speculator
from headstart.speculators.ngram_map import (
    NgramMapK4vSpeculator,
    NgramMapKSpeculator,
    NgramMapOptions,
)
from headstart.speculators.ngram_mod import MAX_COUNT, NgramModSpeculator
from headstart.structures.prefix import common_prefix_length
from headstart.types import Draft

Guess = tuple[list[int], list[float]]
Step = tuple[int, int, list[int]]
MAX_PLACES = 8  # that ngram-map-k4v compares

tokens = st.lists(st.integers(0, 2), max_size=5)
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=25)
steps = st.lists(
    st.tuples(
        st.integers(1, 9),  # tokens that may be drafted
        st.integers(0, 6),  # of the draft that are accepted
        tokens,  # that follow them
    ),
    max_size=25,
)


class Pair(ABC):
    """A speculator and its twin."""

    @abstractmethod
    def ask(self, history: list[int], max_tokens: int) -> Draft: ...

    @abstractmethod
    def expect(self, history: list[int], max_tokens: int) -> Guess: ...

    @abstractmethod
    def accept(self, history: list[int], emitted: list[int]) -> None:
        """Tell both what came; it stands at the end of the history."""

    def play(self, prompt: list[int], steps: list[Step]) -> None:
        """Draft, compare, go on with a part of the draft and other tokens."""
        history = list(prompt)
        for max_tokens, num_accepted, others in steps:
            draft, (tokens, scores) = (
                self.ask(history, max_tokens),
                self.expect(history, max_tokens),
            )
            assert list(draft.tokens) == tokens
            assert list(draft.confidence) == pytest.approx(scores)
            emitted = [*tokens[:num_accepted], *others] or [0]
            history += emitted
            self.accept(history, emitted)


class MapPair(Pair):
    """ngram-map-k and ngram-map-k4v, by searching the text."""

    def __init__(self, speculator: Speculator, options: NgramMapOptions, *, compares: bool) -> None:
        self.speculator = speculator
        self.options = options
        self.compares = compares
        self.adaptive_length: dict[object, int] = {}
        self.watched: tuple[object, list[int]] = (None, [])

    def ask(self, history: list[int], max_tokens: int) -> Draft:
        return propose(self.speculator, history, max_tokens)

    def expect(self, history: list[int], max_tokens: int) -> Guess:
        n, m = self.options.size_n, self.options.size_m
        self.watched = (None, [])
        key = history[-n:]
        places = [p for p in range(len(history) - 1, n - 1, -1) if history[p - n : p] == key]
        places = places[: max(MAX_PLACES if self.compares else 1, self.options.min_hits)]
        if len(key) < n or len(places) < self.options.min_hits:
            return [], []
        best, agreeing = places[0], [places[0]]
        what: tuple[tuple[int, ...], ...] = (tuple(key),)
        if self.compares:
            values = [self.copy(history, place, m) for place in places]
            value = max(values, key=values.count)  # the newest of the commonest
            agreeing = [
                place for place, other in zip(places, values, strict=True) if other == value
            ]
            if len(agreeing) < 2 * (len(places) - len(agreeing)):
                return [], []
            best, what = agreeing[0], (*what, tuple(value))
        else:
            places = places[:1]
        tokens = self.copy(history, best, min(self.adaptive_length.get(what, m), max_tokens))
        self.watched = (what, tokens)
        weights = [len(agreeing) * (n + i) for i in range(len(tokens))]
        scores = [weight / (weight + 1) for weight in weights]
        scores[0] *= len(agreeing) / len(places)
        return tokens, scores

    def copy(self, history: list[int], place: int, size: int) -> list[int]:
        """What stands there; at the end of the text it begins again."""
        return [history[place + i % (len(history) - place)] for i in range(size)]

    def accept(self, history: list[int], emitted: list[int]) -> None:
        self.speculator.accept(0, emitted, 0)
        self.judge(emitted)

    def judge(self, emitted: list[int]) -> None:
        (what, guess), self.watched = self.watched, (None, [])
        if not guess:
            return
        right, longest = common_prefix_length(guess, emitted), self.options.size_m
        if right == len(guess):
            length = 2 * max(right, self.adaptive_length.get(what, longest))
        elif right < len(emitted):
            length = right + 1
        else:
            return
        if what not in self.adaptive_length and len(self.adaptive_length) == ngram_map.MAX_KEYS:
            del self.adaptive_length[next(iter(self.adaptive_length))]
        self.adaptive_length[what] = min(longest, length)


@pytest.mark.parametrize("cls", [NgramMapKSpeculator, NgramMapK4vSpeculator])
@given(
    options=st.builds(NgramMapOptions, st.integers(1, 3), st.integers(1, 5), st.integers(1, 3)),
    prompt=prompts,
    steps=steps,
    max_keys=st.sampled_from([2, 4096]),
)
def test_ngram_map_drafts_what_a_search_of_the_text_and_a_log_of_the_keys_say(
    cls: type[NgramMapKSpeculator | NgramMapK4vSpeculator],
    options: NgramMapOptions,
    prompt: list[int],
    steps: list[Step],
    max_keys: int,
) -> None:
    speculator = cls(options)
    speculator.begin(0, prompt)
    with patch.object(ngram_map, "MAX_KEYS", max_keys):
        MapPair(speculator, options, compares=cls is NgramMapK4vSpeculator).play(prompt, steps)


Table = dict[tuple[int, ...], tuple[int, int]]
"""What followed an n-gram, and how often that was confirmed."""


class ModPair(Pair):
    """ngram-mod, by a dictionary of the n-grams of one namespace."""

    def __init__(
        self, speculator: Speculator, n: int, seq_id: int, namespace: str, table: Table
    ) -> None:
        self.speculator, self.n, self.table = speculator, n, table
        self.seq_id, self.namespace = seq_id, namespace

    def ask(self, history: list[int], max_tokens: int) -> Draft:
        return propose(self.speculator, history, max_tokens, self.seq_id, self.namespace)

    def expect(self, history: list[int], max_tokens: int) -> Guess:
        text, scores = list(history), []
        while len(scores) < max_tokens and tuple(text[-self.n :]) in self.table:
            token, count = self.table[tuple(text[-self.n :])]
            scores.append(count / (count + 1 / (self.n + len(scores))))
            text.append(token)
        return text[len(history) :], scores

    def accept(self, history: list[int], emitted: list[int]) -> None:
        self.speculator.accept(self.seq_id, emitted, 0)
        self.learn(history, len(history) - len(emitted))

    def learn(self, text: list[int], start: int) -> None:
        """What text[start:] followed."""
        for end in range(max(self.n, start), len(text)):
            ngram, token = tuple(text[end - self.n : end]), text[end]
            known, count = self.table.get(ngram, (token, 0))
            if known == token:
                self.table[ngram] = (token, min(count + 1, MAX_COUNT))
            else:
                self.table[ngram] = (known, count // 2) if count > 1 else (token, 1)


@given(
    n=st.integers(1, 3),
    requests=st.lists(
        st.tuples(st.sampled_from(["", "a"]), prompts, steps), min_size=1, max_size=3
    ),
)
def test_ngram_mod_drafts_what_dictionaries_say_over_requests_and_namespaces(n, requests) -> None:
    speculator = NgramModSpeculator(NgramModSpeculator.Options(n_match=n, table_bits=20))
    tables: dict[str, Table] = {"": {}, "a": {}}
    for seq_id, (namespace, prompt, steps) in enumerate(requests):
        pair = ModPair(speculator, n, seq_id, namespace, tables[namespace])
        speculator.begin(seq_id, prompt, namespace)
        pair.learn(prompt, 0)
        pair.play(prompt, steps)
        speculator.end(seq_id)
