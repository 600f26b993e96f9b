"""Which passages occur in a set of texts, in a few kilobytes: sampled hashes of short windows.

Two texts that share a passage of WINDOW bytes and a little more share hashes, wherever it stands
in them, because a hash is taken or left by its own value (Manber 1994, "Finding similar files in a
large file system"). A hash does not reveal the text, but with a text one can find out whether
another has it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.structures.rolling import BASE

WINDOW = 32  # bytes of a passage, a power of 2: some eight tokens, from which on copies are long
MIN_SHIFT = 4  # one window of 2^shift is taken: at first 1 of 16
MAX_SHIFT = 20


def hashes(text: bytes) -> NDArray[np.uint64]:
    """The hash of each window, well mixed, shape (max(0, len(text) - WINDOW + 1),)."""
    if len(text) < WINDOW:
        return np.zeros(0, np.uint64)
    keys = np.frombuffer(text, np.uint8).astype(np.uint64) + np.uint64(1)
    factor, size = BASE, 1
    while size < WINDOW:  # a window of 2n bytes is one of n and the one behind it
        keys = keys[:-size] * np.uint64(factor) + keys[size:]
        factor, size = factor * factor & (2**64 - 1), 2 * size
    return _mixed(keys)


def _mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Make every bit depend on all (the end of splitmix64)."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Digest:
    """Passages of many texts: one window of 2^shift. `passages` is sorted, without doubles."""

    shift: int = MIN_SHIFT
    passages: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))

    def share_of(self, asked: NDArray[np.uint64]) -> float:
        """Which share of a text's passages occur here, 0 to 1; 0 where it is too short to say.

        Args:
            asked: the text's `hashes`.
        """
        taken = asked[(asked & np.uint64((1 << self.shift) - 1)) == 0]
        if not len(taken) or not len(self.passages):
            return 0.0
        upper = (taken >> np.uint64(32)).astype(np.uint32)
        places = np.searchsorted(self.passages, upper)
        places[places == len(self.passages)] = 0
        return float(np.mean(self.passages[places] == upper))

    def to_json(self) -> dict[str, Any]:
        """As it is published."""
        data = base64.b64encode(self.passages.astype("<u4").tobytes()).decode()
        return {"window": WINDOW, "shift": self.shift, "passages": data}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Digest | None:
        """What was published; None if it is not of this kind."""
        shift, data = found.get("shift"), found.get("passages")
        if found.get("window") != WINDOW or not isinstance(data, str):
            return None
        if not isinstance(shift, int) or not MIN_SHIFT <= shift <= MAX_SHIFT:
            return None
        try:
            raw = base64.b64decode(data, validate=True)
        except ValueError:
            return None
        passages = np.frombuffer(raw[: len(raw) // 4 * 4], "<u4").astype(np.uint32)
        return cls(shift, np.unique(passages))


class PassageSet:
    """The passages of texts that come and go, no more of them than `capacity`."""

    def __init__(self, capacity: int = 16384) -> None:
        self._capacity = capacity
        self._shift = MIN_SHIFT
        self._passages: dict[int, int] = {}  # upper half of a hash -> its lower half

    def __len__(self) -> int:
        return len(self._passages)

    def add(self, texts: Iterable[bytes]) -> None:
        """Take texts in; one window in 2^shift of all, thinner the more they are."""
        for text in texts:
            found = hashes(text)
            taken = found[(found & np.uint64((1 << self._shift) - 1)) == 0]
            low = (taken & np.uint64(0xFFFFFFFF)).tolist()
            self._passages.update(zip((taken >> np.uint64(32)).tolist(), low, strict=True))
            while len(self._passages) > self._capacity and self._shift < MAX_SHIFT:
                self._shift += 1
                mask = (1 << self._shift) - 1
                self._passages = {a: b for a, b in self._passages.items() if not b & mask}

    def digest(self) -> Digest:
        """What it holds now."""
        return Digest(self._shift, np.array(sorted(self._passages), np.uint32))
