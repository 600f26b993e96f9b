"""Where did the last tokens occur before? An append-only text with chains of equal n-grams.

Like the hash chains of LZ77: per n, a table from the n-gram's hash to the newest place, and per
place the one before it in the same table slot. No n-gram is stored: a place is checked against
the text. Appending and truncating cost O(1) a token, a whole prompt is appended in numpy, a lookup
is bounded by the number of places asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.structures.rolling import BASE, KEY_BITS, MASK, key_of, keys_of, leaving_factor

SEPARATOR = -1  # between documents: no token equals it
_MIN_BITS = 10
_MAX_STRANGERS = 4
_BULK = 96  # from so many tokens on numpy is faster


class Place(NamedTuple):
    """A place in a text that continues like the text looked up."""

    length: int  # how many tokens before it are equal
    position: int  # of the token that followed


class _Chains:
    """Places by the n tokens before them. `key` belongs to the last n tokens of the text."""

    __slots__ = ("bits", "factor", "head", "key", "n", "previous")

    def __init__(self, n: int) -> None:
        self.n = n
        self.factor = leaving_factor(n)
        self.clear(_MIN_BITS)

    def clear(self, bits: int) -> None:
        self.bits = bits
        self.head = array("i", bytes(4 << bits))  # slot -> newest position; 0 = none
        self.previous = array("i")  # position -> the position before it in its slot
        self.key = 0


class SuffixIndex:
    """One text and its chains.

    Args:
        sizes: the n of the n-grams; a lookup tries the largest first.
        max_match: matches are followed back so far; bounds the work of a lookup.
    """

    __slots__ = ("_chains", "_max_match", "floor", "tokens")

    def __init__(self, sizes: Sequence[int], max_match: int = 16) -> None:
        self._chains = [_Chains(n) for n in sorted(sizes)]
        self._max_match = max(max_match, *sizes)
        self.tokens = array("i")
        self.floor = 0  # places up to here are forgotten: lookups stop there

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_bytes(self) -> int:
        """Memory of the text and its chains."""
        arrays = [self.tokens, *(c.head for c in self._chains), *(c.previous for c in self._chains)]
        return sum(a.buffer_info()[1] * a.itemsize for a in arrays)

    @property
    def keys(self) -> tuple[int, ...]:
        """Hashes of the last n tokens per n: how another index of these sizes finds them."""
        return tuple([chains.key for chains in self._chains])

    @property
    def tail(self) -> array[int]:
        """The tokens a match may be compared with: the last `max_match`."""
        return self.tokens[-self._max_match :]

    def extend(self, new: Sequence[int]) -> None:
        """Append tokens (ids >= 0, or SEPARATOR)."""
        size = len(self.tokens) + len(new)
        if size >> self._chains[0].bits:
            self._rebuild(self.tokens + array("i", new), size.bit_length() + 1)
        elif len(new) >= _BULK or len(self.tokens) < self._chains[-1].n:
            self._append_many(array("i", new))
        else:
            self._append_few(new)

    def _append_few(self, new: Sequence[int]) -> None:
        """Token by token; needs the largest n tokens to be there."""
        tokens, largest, start = self.tokens, self._chains[-1].n, len(self.tokens)
        window = tokens[-largest:].tolist()
        window += new
        for chains in self._chains:
            key, factor, head, append = chains.key, chains.factor, chains.head, chains.previous.append
            shift = KEY_BITS - chains.bits
            for position, leaving, token in zip(count(start), window[largest - chains.n :], new):
                slot = key >> shift
                append(head[slot])
                head[slot] = position
                key = (key - leaving * factor + token) * BASE & MASK
            chains.key = key
        tokens.extend(new)

    def _append_many(self, new: array[int]) -> None:
        start = len(self.tokens)
        self.tokens.extend(new)
        text = np.frombuffer(self.tokens, np.int32)
        for chains in self._chains:
            first = max(start, chains.n)  # the first position with n tokens before it
            chains.previous.extend(array("i", bytes(4 * (min(first, len(text)) - start))))
            if first < len(text):
                keys = keys_of(text[first - chains.n : -1], chains.n)
                self._link_many(chains, first, (keys >> np.uint64(KEY_BITS - chains.bits)).astype(np.int64))
            chains.key = key_of(self.tokens[-chains.n :])

    @staticmethod
    def _link_many(chains: _Chains, first: int, slots: NDArray[np.int64]) -> None:
        """Append the places first, first + 1 ... to the chains of their slots."""
        ordered = np.sort(slots << 32 | np.arange(first, first + len(slots)))  # by slot, then position
        slots, positions = ordered >> 32, (ordered & 0xFFFFFFFF).astype(np.int32)
        head = np.frombuffer(chains.head, np.int32)
        is_first = np.ones(len(slots), bool)  # of its slot
        np.not_equal(slots[1:], slots[:-1], out=is_first[1:])
        before = np.empty_like(positions)
        before[1:] = positions[:-1]
        before[is_first] = head[slots[is_first]]
        previous = np.empty_like(before)
        previous[positions - first] = before
        chains.previous.frombytes(previous.tobytes())
        is_last = np.append(is_first[1:], True)
        head[slots[is_last]] = positions[is_last]

    def _rebuild(self, tokens: array[int], bits: int) -> None:
        self.tokens = array("i")
        for chains in self._chains:
            chains.clear(max(bits, _MIN_BITS))
        if tokens:
            self._append_many(tokens)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens. O(tokens dropped)."""
        if length >= len(self.tokens):
            return
        if length <= len(self.tokens) // 2:
            self._rebuild(self.tokens[:length], self._chains[0].bits)
            return
        for chains in self._chains:
            first = max(length, chains.n)
            text = np.frombuffer(self.tokens, np.int32)[first - chains.n : -1]
            keys = keys_of(text, chains.n) if len(text) >= chains.n else np.empty(0, np.uint64)
            slots = (keys >> np.uint64(KEY_BITS - chains.bits)).tolist()
            for position in range(len(self.tokens) - 1, first - 1, -1):
                chains.head[slots[position - first]] = chains.previous[position]
            del text, chains.previous[length:]
        del self.tokens[length:]
        for chains in self._chains:
            chains.key = key_of(self.tokens[-chains.n :])

    def follow(self, history: Sequence[int], *, is_new: bool = False) -> None:
        """Become equal to `history`, cheaply where only its end differs.

        Looks at the length and the last 8 tokens, so that it does not cost O(history) when nothing
        changed; an edit further back that keeps both passes unseen unless `is_new`.
        """
        size = len(self.tokens)
        if not is_new and size <= len(history):
            recent = max(0, size - 8)
            if list(history[recent:size]) == self.tokens[recent:].tolist():
                if size < len(history):
                    self.extend(history[size:])
                return
        common = common_prefix(self.tokens, history)
        self.truncate(common)
        self.extend(history[common:])

    def places(self, limit: int) -> list[Place]:
        """Earlier places that continue like the end of this text, newest first."""
        return self.find(self.tail, self.keys, limit)

    def find(self, tail: array[int], keys: Sequence[int], limit: int) -> list[Place]:
        """Places after the end of `tail`, newest first; of the largest n that has any.

        Args:
            tail: end of the text to look up, at most `max_match` tokens.
            keys: hashes of its last n tokens, as `keys` of an index with the same sizes.
            limit: most places.
        """
        size, number = len(tail), _number(tail)
        for chains, key in zip(reversed(self._chains), reversed(keys), strict=True):
            found = self._walk(chains, key, (size, number), limit) if size >= chains.n else []
            if found:
                return found
        return []

    def _walk(self, chains: _Chains, key: int, tail: tuple[int, int], limit: int) -> list[Place]:
        tokens, previous, floor, n = self.tokens, chains.previous, self.floor, chains.n
        size, number = tail
        last = number >> 32 * (size - 1)
        position = chains.head[key >> (KEY_BITS - chains.bits)]
        found: list[Place] = []
        num_strangers = 0  # that share the slot: a few are passed over
        while position > floor:
            # Most strangers differ in the last token, which is cheap to see.
            length = self._num_equal(size, number, position) if tokens[position - 1] == last else 0
            if length >= n and tokens[position] != SEPARATOR:
                found.append(Place(length, position))
                if len(found) == limit:
                    break
            else:
                num_strangers += 1
                if num_strangers == limit + _MAX_STRANGERS:
                    break
            position = previous[position]
        return found

    def match(self, tail: array[int], position: int) -> int:
        """How many tokens before `position` equal the end of `tail`."""
        return self._num_equal(len(tail), _number(tail), position)

    def _num_equal(self, size: int, number: int, position: int) -> int:
        """`match` for a tail given as its length and number.

        Later tokens are more significant, so the highest differing bit tells how many at the end
        are equal: one comparison instead of a loop.
        """
        reach = position - self.floor
        if reach < size:
            number >>= 32 * (size - reach)
            size = reach
        other = int.from_bytes(self.tokens[position - size : position].tobytes(), "little")
        return size - ((number ^ other).bit_length() + 31 >> 5)

    def copy(self, position: int, size: int) -> list[int]:
        """The next `size` tokens from `position`, up to a separator.

        A copy that reaches the end of the text goes on with what it has copied, as in LZ77: in a
        loop shorter than the draft it repeats the loop.
        """
        copied = self.tokens[position : position + size].tolist()
        if SEPARATOR in copied:
            return copied[: copied.index(SEPARATOR)]
        period = len(copied)
        while len(copied) < size:
            copied += copied[-period:]
        return copied[:size]


def _number(tokens: array[int]) -> int:
    """The tokens as one number, 32 bits each, the last one most significant."""
    return int.from_bytes(tokens.tobytes(), "little")


def common_prefix(one: array[int], other: Sequence[int]) -> int:
    """Number of equal tokens at the start. O(n) in numpy."""
    size = min(len(one), len(other))
    if not size:
        return 0
    differs = np.frombuffer(one, np.int32, size) != np.array(other[:size], np.int32)
    return int(differs.argmax()) if differs.any() else size
