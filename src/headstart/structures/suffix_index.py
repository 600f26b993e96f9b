"""Finds where the last tokens occurred before: an append-only text with chains of equal n-grams.

Like the hash chains of LZ77: per n, a table from the n-gram's hash to the newest place, and per
place the previous one in the same table slot. No n-gram is stored: a place is checked against the
text. The newest tokens are linked in batches by numpy; until then they are searched as bytes, which
costs less than a Python loop over them. Large appends are also linked `SLICE` tokens per call,
because the engine loop waits.

    tokens[0 : num_linked]             places are in chains
    tokens[num_linked : len(tokens)]   searched as they are

Appending costs O(1) per token; a lookup is bounded by the number of places requested.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# between documents, and in place of images: no model's token; the largest that ngram-cache can pack
SEPARATOR = (1 << 24) - 2
_MOST_STRANGERS = 4  # places of other n-grams that are skipped, besides `limit`
_BULK = 512  # minimum number of tokens linked together
SLICE = 1024  # maximum per call: a third of a millisecond, for each answer of a step
_CLEARED = 1 << 19  # slots of the tables cleared per call: one huge page
_PRIME = 2038074743  # below 2^31, and 2^32 is not small modulo it


Place = tuple[int, int]
"""A place in a text that continues like the looked-up one: the number of equal tokens before it,
and the position of the token that followed.
"""


def _numbers_of(text: NDArray[np.int32], n: int) -> NDArray[np.int64]:
    """All n-grams of a text (at least one) as numbers modulo `_PRIME`; the last token is the most
    significant.
    """
    tokens = text.view("<u4")
    keys = np.zeros(len(tokens) - n + 1, np.uint64)
    for j in reversed(range(n)):
        keys <<= np.uint64(32)
        keys |= tokens[j : j + len(keys)]
        keys %= np.uint64(_PRIME)
    return keys.view(np.int64)


class _Chains:
    """Places by the n tokens before them."""

    __slots__ = ("head", "mask", "n", "num_cleared", "previous")

    def __init__(self, n: int, bits: int) -> None:
        self.n = n
        self.clear(bits)

    def clear(self, bits: int) -> None:
        bits = max(bits, 6)  # most namespaces have a text or two
        self.mask = (1 << bits) - 1
        # slot -> newest position; 0 = none. A memoryview reads a number faster than numpy.
        self.head = np.empty(1 << bits, np.int32).data
        self.num_cleared = 0  # slots; the others are not set yet
        self.previous = array("i")  # position -> the previous position in its slot

    def go_on(self, num_slots: int) -> int:
        """Clear up to so many more slots; returns how many."""
        start = self.num_cleared
        self.num_cleared = min(len(self.head), start + num_slots)
        if self.num_cleared > start:
            np.frombuffer(self.head, np.int32)[start : self.num_cleared] = 0
        return self.num_cleared - start

    def append(self, tokens: array[int], end: int) -> None:
        """Link all unlinked places of the text before `end`."""
        start = len(self.previous)
        first = max(start, self.n)  # the first position with n tokens before it
        self.previous.extend(array("i", bytes(4 * (min(first, end) - start))))
        if first >= end:
            return
        text = np.frombuffer(tokens, np.int32)[first - self.n : end - 1]
        slots = _numbers_of(text, self.n) & self.mask  # of the places after each n tokens
        slots <<= 32
        slots |= np.arange(first, end)
        slots.sort()  # by slot, then position
        positions = slots.astype(np.int32)  # the low half
        slots >>= 32
        head = np.frombuffer(self.head, np.int32)
        before = head[slots]
        is_repeated = slots[1:] == slots[:-1]
        np.copyto(before[1:], positions[:-1], where=is_repeated)
        previous = np.empty(len(before), np.int32)
        previous[positions - first] = before
        self.previous.frombytes(previous.tobytes())
        is_newest = np.ones(len(before), bool)  # per slot
        np.logical_not(is_repeated, out=is_newest[:-1])
        head[slots[is_newest]] = positions[is_newest]


class SuffixIndex:
    """One text and its chains.

    Args:
        sizes: the n of the n-grams; a lookup tries the largest first.
        max_match: maximum length of a match; bounds the work of a lookup.
        capacity: tokens that the chains are sized for. None: they are rebuilt whenever the text
            has outgrown them.
        text: its initial contents.
    """

    __slots__ = ("_chains", "_grows", "_max_match", "floor", "num_linked", "tokens")

    def __init__(
        self,
        sizes: Sequence[int],
        max_match: int = 16,
        capacity: int | None = None,
        text: Sequence[int] = (),
    ) -> None:
        bits = (capacity or 0).bit_length()
        self._chains = [_Chains(n, bits) for n in sorted(sizes, reverse=True)]
        self._grows = capacity is None
        self._max_match = max(max_match, *sizes)
        self.tokens = array("i")
        self.num_linked = 0  # places before it are linked
        self.floor = 0  # places up to here are dropped: lookups stop there
        if text:
            self.extend(text)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_bytes(self) -> int:
        """Memory of the text and its chains."""
        heads = sum(4 * len(chains.head) for chains in self._chains)
        return heads + 4 * (len(self.tokens) + sum(len(c.previous) for c in self._chains))

    @property
    def is_crowded(self) -> bool:
        """Whether the text has outgrown the chains, which makes lookups slower and worse."""
        return len(self.tokens) > self._chains[0].mask

    @property
    def key(self) -> bytes:
        """The key of a lookup: the last tokens, as many as the largest n."""
        return self.tokens[-self._chains[0].n :].tobytes()

    def extend(self, new: Sequence[int]) -> None:
        """Append tokens (ids >= 0, SEPARATOR among them)."""
        # an array is appended as a whole
        self.tokens.extend(new if len(new) < _BULK else array("i", new))
        size = len(self.tokens)
        if self._grows and size > self._chains[0].mask:  # crowded
            self.num_linked = 0
            for chains in self._chains:
                chains.clear(size.bit_length() + 1)
        if size - self.num_linked >= _BULK:
            self.link(SLICE)

    def prepare(self) -> bool:
        """Clear a piece of the tables, all of small ones; returns whether they are clear.

        The slots of a few tokens lie in all pages of a table, so that linking these would use all
        of its memory for the first time.
        """
        left = _CLEARED
        for chains in self._chains:
            left -= chains.go_on(left)
        return left > 0

    def link(self, num_tokens: int) -> None:
        """Link `num_tokens` more tokens, if the tables are clear."""
        if not self.prepare():
            return
        self.num_linked = min(len(self.tokens), self.num_linked + num_tokens)
        for chains in self._chains:
            chains.append(self.tokens, self.num_linked)

    def find(self, text: array[int], limit: int) -> list[Place]:
        """Up to `limit` places that continue like the end of a text, newest first; for the largest
        n that has any.
        """
        tokens, floor, ending = self.tokens, self.floor, text[-self._max_match :]
        size, bare = len(ending), ending.tobytes()  # four bytes per token
        number = int.from_bytes(bare, "little")  # the last token is the most significant
        # unlinked tokens, and before them as many as the longest n-gram needs
        first = max(0, max(self.num_linked, floor) - self._chains[0].n)
        recent = tokens[first:-1].tobytes()
        # the shortest n-gram is required for any longer one
        is_recent = recent.rfind(bare[-4 * self._chains[-1].n :]) >= 0
        for chains in self._chains:
            n = chains.n
            if n > size:
                continue
            found: list[Place] = []
            if is_recent:  # places that are not linked yet
                ngram, start = bare[-4 * n :], 4 * (max(self.num_linked, floor + n) - n - first)
                at, num_strangers = recent.rfind(ngram, start), 0
                while at >= 0 and len(found) < limit:
                    position = first + n + (at >> 2)
                    if not at & 3 and tokens[position] != SEPARATOR:
                        found.append((self._num_equal(number, size, position), position))
                    else:
                        num_strangers += 1
                        if num_strangers == limit + _MOST_STRANGERS:
                            break
                    # tokens start at multiples of four bytes
                    at = recent.rfind(ngram, start, (at - 1 & ~3) + 4 * n)
            slot = (number >> 32 * (size - n)) % _PRIME & chains.mask
            position = chains.head[slot] if self.num_linked else 0
            num_strangers = 0  # other n-grams in the slot: a few are skipped
            while position > floor and len(found) < limit:
                if position - floor < size:
                    length = self._num_equal(number, size, position)
                else:  # the same, inlined
                    other = int.from_bytes(tokens[position - size : position], "little")
                    length = size - ((number ^ other).bit_length() + 31 >> 5)
                if length >= n and tokens[position] != SEPARATOR:
                    found.append((length, position))
                else:
                    num_strangers += 1
                    if num_strangers == limit + _MOST_STRANGERS:
                        break
                position = chains.previous[position]
            if found:
                return found
        return []

    def _num_equal(self, number: int, size: int, position: int) -> int:
        """Number of tokens before `position` that equal the last of the `size` tokens of a number.

        Later tokens are more significant, so the highest differing bit shows how many at the end
        are equal: one comparison instead of a loop.
        """
        if (most := position - self.floor) < size:
            number >>= 32 * (size - most)
            size = most
        other = int.from_bytes(self.tokens[position - size : position], "little")
        return size - ((number ^ other).bit_length() + 31 >> 5)

    def copy(self, position: int, size: int) -> list[int]:
        """The next `size` tokens from `position`, up to a separator.

        A copy that reaches the end of the text continues with its own tokens, as in LZ77: a loop
        shorter than the draft is repeated.
        """
        copied = self.tokens[position : position + size].tolist()
        if SEPARATOR in copied:
            return copied[: copied.index(SEPARATOR)]
        period = len(copied)
        return copied if period == size else (copied * (size // period + 1))[:size]
