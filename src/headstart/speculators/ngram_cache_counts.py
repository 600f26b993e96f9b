"""Counts of the tokens that followed each n-gram of 1 to 4 tokens, and llama.cpp's file format.

The file (made by its `lookup` examples) repeats, in native int32: the four tokens of the n-gram, -1
if it is shorter; a number k; k pairs of token and count. It does not identify the vocabulary.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from headstart.types.errors import ModelError

MAX_NGRAM = 4
PIECE = 1024  # tokens of a text counted per call: about a millisecond
_WIDTH = 24  # bits of a token in a packed n-gram; ids are at most SEPARATOR
_MASKS = tuple((1 << _WIDTH * n) - 1 for n in range(1, MAX_NGRAM + 1))
_ABSENT = -1
_COUNT = (1 << 32) - 1  # the bits of a count


def pack(ngram: Iterable[int]) -> int:
    """Pack an n-gram into one number; different lengths give different numbers."""
    key = 0
    for token in ngram:
        key = key << _WIDTH | token + 1
    return key


def slide(key: int, token: int) -> int:
    """The packed last MAX_NGRAM tokens after appending one."""
    return (key << _WIDTH | token + 1) & _MASKS[-1]


def shorter(key: int, n: int) -> int:
    """The packed last n tokens of a packed n-gram with at least n."""
    return key & _MASKS[n - 1]


class _Several:
    """Counts of an n-gram with more than one successor; `best` is one with the largest count."""

    __slots__ = ("best", "counts", "total")

    def __init__(self, token: int, count: int) -> None:
        self.counts = {token: count}
        self.total = count
        self.best = token

    def add(self, token: int, count: int) -> None:
        self.counts[token] = new = self.counts.get(token, 0) + count
        self.total += count
        if new > self.counts[self.best]:
            self.best = token

    def weighed_best(self, weights: Mapping[int, int]) -> int:
        """The token with the largest count * (100 * weight, or 1)."""
        counts = self.counts
        known = [token for token in weights if token in counts]
        return max(
            [*known, self.best],
            key=lambda token: counts[token] * (100 * weights.get(token, 0) or 1),
        )


class NgramCounts:
    """Counts of next tokens per n-gram.

    Most n-grams have one successor, so these are stored as one number (token << 32 | count) and
    only the others as an object: a third of the memory.

    Args:
        limit: maximum number of n-grams; beyond it the rarest eighth is dropped. None: no
            limit.
    """

    __slots__ = ("_limit", "_table")

    def __init__(self, limit: int | None = None) -> None:
        self._table: dict[int, int | _Several] = {}
        self._limit = limit

    def __len__(self) -> int:
        return len(self._table)

    def learn(self, tokens: Sequence[int], start: int) -> None:
        """Count tokens[start:] as successors; earlier tokens are context only."""
        key, table = pack(tokens[max(0, start - MAX_NGRAM) : start]), self._table
        for position, token in enumerate(tokens[start:], start):
            lone = token << 32 | 1
            for mask in _MASKS[:position]:
                ngram = key & mask
                found = table.get(ngram)
                if found is None:
                    table[ngram] = lone
                else:
                    self._add_to(found, ngram, token, 1)
            key = (key << _WIDTH | token + 1) & _MASKS[-1]
        self._trim()

    def _add(self, key: int, token: int, count: int) -> None:
        found = self._table.get(key)
        if found is None:
            self._table[key] = token << 32 | count
        else:
            self._add_to(found, key, token, count)

    def _add_to(self, found: int | _Several, key: int, token: int, count: int) -> None:
        if isinstance(found, int):
            if found >> 32 == token:
                self._table[key] = found + count
                return
            self._table[key] = found = _Several(found >> 32, found & _COUNT)
        found.add(token, count)

    def _trim(self) -> None:
        """Drop the rarest n-grams, among equals the oldest, if there are too many. 0.1 s for
        500,000.
        """
        table, limit = self._table, self._limit
        if limit is None or len(table) <= limit:
            return
        totals = [
            found & _COUNT if isinstance(found, int) else found.total for found in table.values()
        ]
        rarest, keys = np.argsort(np.array(totals), kind="stable"), list(table)
        for at in rarest[: len(table) - limit + limit // 8].tolist():
            del table[keys[at]]

    def after(self, key: int) -> Mapping[int, int] | None:
        """Counts by token after a packed n-gram; None if it was never seen."""
        found = self._table.get(key)
        if isinstance(found, int):
            return {found >> 32: found & _COUNT}
        return None if found is None else found.counts

    def clearest(
        self,
        key: int,
        size: int,
        thresholds: Sequence[tuple[int, int, int]],
        weights: Mapping[int, int],
    ) -> tuple[int, float] | None:
        """The best successor of the longest n-gram that is clear enough, and its share.

        The best has the largest count * (100 * weight, or 1). The share is count / (samples + 1 /
        n).

        Args:
            key: the packed last tokens.
            size: how many of them to use at most.
            thresholds: n-grams, the longest first: n, the samples that one needs, and the percent
                of them that the token needs.
            weights: by token; may be empty.
        """
        get = self._table.get
        for n, min_samples, min_percent in thresholds:
            found = get(key & _MASKS[n - 1]) if n <= size else None
            if found is None:
                continue
            if isinstance(found, int):
                count = found & _COUNT
                if count < min_samples:
                    continue
                return found >> 32, count / (count + 1 / n)
            if found.total < min_samples:
                continue
            token = found.weighed_best(weights) if weights else found.best
            count = found.counts[token]
            if 100 * count >= min_percent * found.total:
                return token, count / (found.total + 1 / n)
        return None

    @classmethod
    def load(cls, path: Path, vocab_size: int, limit: int | None = None) -> NgramCounts:
        """Read llama.cpp's file.

        Raises:
            ModelError: it cannot be read, is damaged, or belongs to a larger vocabulary.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ModelError(
                f"lookup cache {path} cannot be read: {reason}; name another file"
            ) from error
        if not data or len(data) % 4:
            raise ModelError(
                f"lookup cache {path} is damaged: {len(data)} bytes are not a whole number of "
                "int32; delete it or rebuild it"
            )
        counts = cls(limit)
        numbers = array("i", data)
        position = 0
        while position < len(numbers):
            position = counts._read_record(numbers, position, vocab_size, path)
        counts._trim()
        return counts

    def _read_record(self, numbers: array[int], position: int, vocab_size: int, path: Path) -> int:
        def damaged(what: str) -> ModelError:
            return ModelError(
                f"lookup cache {path} is damaged at byte {4 * position}: {what}; delete it or "
                "rebuild it"
            )

        start = position + MAX_NGRAM + 1
        if start > len(numbers):
            raise damaged("the last record is cut off")
        ngram, num_pairs = numbers[position : start - 1].tolist(), numbers[start - 1]
        end = start + 2 * num_pairs
        if num_pairs < 1 or end > len(numbers):
            raise damaged(f"a record claims {num_pairs} successors")
        size = ngram.index(_ABSENT) if _ABSENT in ngram else MAX_NGRAM
        if not size or any(token != _ABSENT for token in ngram[size:]):
            raise damaged(f"{ngram} is not an n-gram")
        pairs = numbers[start:end]
        for token in (*ngram[:size], *pairs[0::2]):
            if not 0 <= token < vocab_size:
                raise ModelError(
                    f"lookup cache {path} holds token {token} but the model's vocabulary has "
                    f"{vocab_size}: it was made with another model; name another file"
                )
        if min(pairs[1::2]) < 1:
            raise damaged(f"a count is {min(pairs[1::2])}")
        key = pack(ngram[:size])
        for token, count in zip(pairs[0::2], pairs[1::2], strict=True):
            self._add(key, token, count)
        return end


class CountedHistory:
    """The `tokens` of a request, of which the first `num_prompt` are the prompt, and `counts` over
    them; a long prompt is counted in pieces, from its end, as the text grows.
    """

    __slots__ = ("_num_left", "counts", "namespace", "num_prompt", "tokens")

    def __init__(self, prompt: Sequence[int], namespace: str = "") -> None:
        self.namespace = namespace
        self.num_prompt = len(prompt)
        self.tokens = array("i", prompt)
        self.counts = NgramCounts()
        self._num_left = len(prompt)  # tokens at the beginning that are not counted yet
        self.extend(())

    def extend(self, new: Sequence[int]) -> None:
        """Count these and one piece of the rest, because the engine's loop waits."""
        self.tokens.extend(new)
        end = self._num_left
        self._num_left = max(0, end - PIECE)
        for start, stop in ((len(self.tokens) - len(new), None), (self._num_left, end)):
            first = max(0, start - MAX_NGRAM)
            self.counts.learn(self.tokens[first:stop], start - first)
