"""One hash table of constant size for all sequences, from n tokens to the token that followed.

Every prompt and answer feeds the table, so a text seen in one request helps the next one of the
same namespace. Drafts are built token by token: each draft token enters the window for the next
lookup. The score of the i-th, from 0, is c / (c + 1 / (n + i)), where c is how often the entry was
confirmed (1 to 15).

The idea and the names of the options are those of llama.cpp's ngram-mod; fingerprints and per-entry
counts (`NgramTable`) replace its unchecked entries and its resets.

An entry is 64 bits: token (32), fingerprint of the n-gram (24), count (8; 0 = empty). With the
fingerprint, one in 16 million lookups is a false hit. Entries are never emptied: the count rises
when the same token follows again, is halved when another does, drops by one when another n-gram
needs the slot, and at zero the entry is replaced. So used entries stay, stale ones give way, and an
unpredictable text does not evict the others.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.config import option
from headstart.speculators.base import register
from headstart.speculators.base_texts import TextSpeculator
from headstart.structures.tenants import namespace_id
from headstart.types import Draft, DraftRequest
from headstart.types.errors import ConfigError


class _LearnedText:
    """A text; the table learns new tokens."""

    __slots__ = ("_table", "salt", "tokens")

    def __init__(self, table: NgramTable, salt: int, text: Sequence[int]) -> None:
        self._table, self.salt, self.tokens = table, salt, array("i", text)

    def extend(self, new: Sequence[int]) -> None:
        self.tokens.extend(new)
        known = len(self.tokens) - len(new)
        self._table.learn(self.tokens[max(0, known - self._table.n) :], self.salt)


@register
class NgramModSpeculator(TextSpeculator[_LearnedText]):
    """Walks a table shared by all sequences."""

    name = "ngram-mod"

    @dataclass(frozen=True, slots=True)
    class Options:
        """Lengths in tokens."""

        n_match: int = option(24, "last tokens that must have occurred before", least=1)
        n_max: int = option(64, "longest draft, in tokens", least=1, limits_draft=True)
        n_min: int = option(0, "drafts of fewer tokens than this are dropped", least=0)
        table_bits: int = option(22, "2^bits entries of 8 bytes: 22 = 32 MiB", least=10, most=28)

        def __post_init__(self) -> None:
            if self.n_min > self.n_max:
                raise ConfigError(
                    f"ngram-mod needs n-min <= n-max, got {self.n_min} and {self.n_max}"
                )

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._table = NgramTable(self.options.n_match, self.options.table_bits)
        # rest of prompts to learn later: the text, start and end
        self._unlearned: deque[tuple[_LearnedText, int, int]] = deque(maxlen=64)

    def go_on(self) -> None:
        if self._unlearned:
            self._learn(*self._unlearned.popleft())

    def _learn(self, text: _LearnedText, start: int, end: int) -> None:
        """Learn at most PIECE tokens of a text, because a step waits."""
        stop = min(end, start + PIECE)
        self._table.learn(text.tokens[max(0, start - self._table.n) : stop], text.salt)
        if stop < end:
            self._unlearned.append((text, stop, end))

    def history_of(self, text: Sequence[int], namespace: str) -> _LearnedText:
        # bits that represent the namespace, as many as a key has; 0 for the public one
        salt = int.from_bytes(namespace_id(namespace)[:8], "little") & _MASK
        history = _LearnedText(self._table, salt, text)
        self._learn(history, 0, len(text))
        return history

    def draft_for(self, history: _LearnedText, request: DraftRequest) -> Draft:
        options, window = self.options, history.tokens[-self.options.n_match :].tolist()
        if len(window) < options.n_match:
            return Draft(reason="history too short")
        limit = min(request.max_tokens, options.n_max)
        tokens, counts = self._table.follow(window, history.salt, limit)
        if not tokens or len(tokens) < min(options.n_min, request.max_tokens):
            return Draft(reason="shorter than n-min" if tokens else "")
        scores = [
            count / (count + 1 / length) for length, count in enumerate(counts, options.n_match)
        ]
        return Draft(tokens, scores)

    def describe(self) -> dict[str, Any]:
        return {"table_bytes": self._table.num_bytes}


PIECE = 512  # tokens of a prompt learned per call: about a millisecond
MAX_COUNT = 15
_FINGERPRINT = (1 << 24) - 1
_KEY_BITS = 60  # two digits of a Python int: products stay cheap
_MASK = (1 << _KEY_BITS) - 1
_BASE = 0xE3779B97F4A7C15  # odd, so that multiplication is invertible


def updated(entry: int, token: int, fingerprint: int) -> int:
    """The entry after `token` followed the n-gram with this fingerprint."""
    count = entry & 0xFF
    if count and (entry >> 8) & _FINGERPRINT != fingerprint:
        return entry - 1 if count > 1 else token << 32 | fingerprint << 8 | 1
    if count and entry >> 32 != token:
        return entry - count + count // 2 if count > 1 else token << 32 | fingerprint << 8 | 1
    return token << 32 | fingerprint << 8 | min(count + 1, MAX_COUNT)


class NgramTable:
    """2^bits entries of 8 bytes. Texts with different salts are separate.

    The key of a window t_1 .. t_n is the sum of t_j * _BASE^(n + 1 - j) modulo 2^60. Its high bits
    are well mixed: the top ones address the table, and those below are the fingerprint.
    """

    __slots__ = ("_entries", "_fingerprint_shift", "_shift", "_view", "factor", "n")

    def __init__(self, n: int, bits: int = 22) -> None:
        self.n = n
        self.factor: int = pow(_BASE, n, _MASK + 1)  # for a token that leaves a window
        self._shift = _KEY_BITS - bits
        self._fingerprint_shift = _KEY_BITS - bits - 24
        self._entries = np.zeros(1 << bits, np.uint64)  # untouched pages cost no memory
        self._view = self._entries.data  # reads a scalar four times faster than numpy

    @property
    def num_bytes(self) -> int:
        return self._entries.nbytes

    def learn(self, tokens: Sequence[int], salt: int) -> None:
        """Learn the successor of every n tokens of a text."""
        view, key = self._view, self.key_of(tokens[: self.n])
        for leaving, token in zip(tokens, tokens[self.n :], strict=False):
            salted = key ^ salt
            slot = salted >> self._shift
            mark = (salted >> self._fingerprint_shift) & _FINGERPRINT
            view[slot] = updated(view[slot], token, mark)
            key = (key - leaving * self.factor + token) * _BASE & _MASK

    @staticmethod
    def key_of(tokens: Sequence[int]) -> int:
        """Key of a window."""
        key = 0
        for token in tokens:
            key = (key + token) * _BASE & _MASK
        return key

    def follow(self, window: list[int], salt: int, count: int) -> tuple[list[int], list[int]]:
        """Follow the table from a window (the last n tokens) as far as possible.

        Returns at most `count` tokens, and the count of each (1 to MAX_COUNT).
        """
        view, shift, mark_shift = self._view, self._shift, self._fingerprint_shift
        tokens: list[int] = []
        counts: list[int] = []
        key, window = self.key_of(window), window[:]
        for i in range(count):
            salted = key ^ salt
            entry = view[salted >> shift]
            if not entry or (entry >> 8) & _FINGERPRINT != (salted >> mark_shift) & _FINGERPRINT:
                break
            token = entry >> 32
            tokens.append(token)
            counts.append(entry & 0xFF)
            window.append(token)
            key = (key - window[i] * self.factor + token) * _BASE & _MASK
        return tokens, counts
