"""One hash table of constant size for all sequences: n tokens to the token that followed.

Every text that is read or written feeds the table, so a text seen in one request drafts in the
next, for the same namespace. Drafts are walked token by token: the draft token enters the window
for the next look. The score of a token is the running product of c / (c + 1 / (n + i)), where c is
how often the entry was confirmed (1 to 15).

The idea and the names of the options are those of llama.cpp's ngram-mod; fingerprints and per-entry
counts (see `ngram_mod_table.py`) replace its unchecked entries and its resets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headstart.config import option
from headstart.speculators.base import Speculator, register
from headstart.speculators.ngram_mod_table import NgramTable
from headstart.structures.rolling import key_of, leaving_factor, salt_of, slide
from headstart.types import Draft, DraftRequest
from headstart.types.errors import ConfigError


@dataclass(slots=True)
class _DraftedText:
    """Where a history stands: its length, its last n tokens and their hash."""

    salt: int
    size: int
    window: deque[int]
    key: int


@register
class NgramModSpeculator(Speculator):
    """Walks a table shared by all sequences."""

    name = "ngram-mod"
    scores_are_probabilities = True

    @dataclass(frozen=True, slots=True)
    class Options:
        """Lengths in tokens."""

        n_match: int = option(24, "last tokens that must have occurred before")
        n_max: int = option(64, "longest draft, in tokens", limits_draft=True)
        n_min: int = option(0, "drafts of fewer tokens than this are dropped")
        table_bits: int = option(22, "2^bits entries of 8 bytes: 22 = 32 MiB")

        def __post_init__(self) -> None:
            if self.n_match < 1 or not 0 <= self.n_min <= self.n_max or self.n_max < 1:
                raise ConfigError(
                    "ngram-mod needs n-match >= 1 and 0 <= n-min <= n-max, n-max >= 1, got "
                    f"{self.n_match}, {self.n_min} and {self.n_max}"
                )
            if not 10 <= self.table_bits <= 28:
                raise ConfigError(
                    f"ngram-mod needs table-bits from 10 to 28, got {self.table_bits}"
                )

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()
        self._table = NgramTable(self._options.n_match, self._options.table_bits)
        self._factor = leaving_factor(self._options.n_match)
        self._sequences: dict[int, _DraftedText] = {}

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        salt = salt_of(namespace)
        self._table.learn(prompt, salt)
        self._sequences[seq_id] = self._stand(salt, prompt)

    def _stand(self, salt: int, history: Sequence[int]) -> _DraftedText:
        window = deque(history[-self._options.n_match :], self._options.n_match)
        return _DraftedText(salt, len(history), window, key_of(window))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        state, options = self._at(request), self._options
        if len(state.window) < options.n_match:
            return Draft(speculator=self.name, reason="history too short")
        tokens, counts = self._table.follow(
            state.key, list(state.window), state.salt, min(request.max_tokens, options.n_max)
        )
        if not tokens or len(tokens) < min(options.n_min, request.max_tokens):
            return Draft(
                speculator=self.name, reason="shorter than n-min" if tokens else "no match"
            )
        scores = [
            count / (count + 1 / length) for length, count in enumerate(counts, options.n_match)
        ]
        return Draft(tokens, scores, self.name)

    def _at(self, request: DraftRequest) -> _DraftedText:
        """The state of a sequence; taken anew from the history if they moved apart."""
        state, tokens = self._sequences.get(request.seq_id), request.tokens
        if state is None:
            self.begin(request.seq_id, tokens, request.namespace)
            return self._sequences[request.seq_id]
        if (
            state.size == len(tokens)
            and list(state.window)[-8:] == list(tokens[-8:])[-len(state.window) :]
        ):
            return state
        if state.size < len(tokens):
            self._table.learn(tokens[max(0, state.size - self._options.n_match) :], state.salt)
        self._sequences[request.seq_id] = state = self._stand(state.salt, tokens)
        return state

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        state = self._sequences.get(seq_id)
        if state is None:
            return
        window, key, factor, n = state.window, state.key, self._factor, self._options.n_match
        for token in emitted:
            leaving = 0
            if len(window) == n:
                self._table.learn_next(key, token, state.salt)
                leaving = window[0]
            key = slide(key, leaving, token, factor)
            window.append(token)
        state.key, state.size = key, state.size + len(emitted)

    def end(self, seq_id: int) -> None:
        self._sequences.pop(seq_id, None)

    def describe(self) -> dict[str, Any]:
        return {"table_bytes": self._table.num_bytes}
