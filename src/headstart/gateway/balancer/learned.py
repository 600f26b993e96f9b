"""Estimates from a replica's answers: prices, and how much of prompts its cache keeps.

Answers of Headstart and llama-server report in `timings` how many prompt tokens were cached and
what the others took. Older answers fade, so a replica that was busy recovers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from headstart.gateway.balancer.policy import PROMPT_SLOWDOWN, TOKEN_SLOWDOWN, Prices

DECAY = 0.9  # of what older answers weigh, per answer


class Mean:
    """A mean of weighted values in which older ones fade; it begins with a guess."""

    def __init__(self, guess: float, weight: float = 1.0) -> None:
        self._sum, self._weight = guess * weight, weight

    @property
    def value(self) -> float:
        return self._sum / self._weight

    def add(self, total: float, weight: float = 1.0) -> None:
        """Add `weight` values with the sum `total`."""
        if weight > 0:
            self._sum = DECAY * self._sum + total
            self._weight = DECAY * self._weight + weight


class Timings(NamedTuple):
    """Numbers of an answer, in llama-server's terms: tokens and milliseconds."""

    cache_n: float = 0
    prompt_n: float = 0  # cached ones excluded
    prompt_ms: float = 0
    predicted_n: float = 0
    predicted_ms: float = 0

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Timings | None:
        """Read from the last object of an answer; None if it has no timings."""
        found = answer.get("timings")
        if not isinstance(found, dict):
            return None
        values = [found.get(name, 0) for name in cls._fields]
        is_valid = all(isinstance(one, int | float) and one >= 0 for one in values)
        return cls(*values) if is_valid else None


@dataclass(slots=True)
class Learned:
    """Prices of one replica, as its answers show them."""

    prompt_token: Mean = field(default_factory=lambda: Mean(Prices().prompt_token))
    token: Mean = field(default_factory=lambda: Mean(Prices().token))
    request: Mean = field(default_factory=lambda: Mean(Prices().request))
    trust: float = 0.0  # in these prices, 0 to 1; what it lacks is in the other replicas'

    def add(self, timings: Timings, num_before: int = 0, num_after: int = 0) -> None:
        """Add an answer; the counts are of other requests running at its start and at its end."""
        num_beside = (num_before + num_after) / 2
        self.trust += 0.3 * (1 - self.trust)
        self.request.add((timings.prompt_ms + timings.predicted_ms) / 1000)
        if timings.prompt_n >= 16:  # with fewer, the time is the step's rather than the tokens'
            seconds = timings.prompt_ms / 1000 / timings.prompt_n
            self.prompt_token.add(seconds / (1 + PROMPT_SLOWDOWN * num_before))
        if timings.predicted_n > 1 and timings.predicted_ms:
            seconds = timings.predicted_ms / 1000 / (timings.predicted_n - 1)
            self.token.add(seconds / (1 + TOKEN_SLOWDOWN * num_beside))

    def fade(self) -> None:
        """Reduce the trust in these prices, because another replica answered."""
        self.trust *= 0.98

    def prices(self) -> Prices:
        """The prices estimated from its own answers."""
        return Prices(**{one.name: getattr(self, one.name).value for one in fields(Prices)})


def shared_prices(all_learned: Sequence[Learned]) -> list[Prices]:
    """The prices that the policy uses for each: its own as far as they are known, else the others'.

    A replica that was never asked, or was slow when it was asked long ago, is taken for one like
    the others, or it would never be asked again.
    """
    own = [(one.prices(), one.trust) for one in all_learned]
    total = sum(trust for _, trust in own)
    if not total:
        return [Prices() for _ in own]

    def blend(name: str, prices: Prices, trust: float) -> float:
        mean = sum(getattr(one, name) * weight for one, weight in own) / total
        return float(trust * getattr(prices, name) + (1 - trust) * mean)

    names = [one.name for one in fields(Prices)]
    return [Prices(**{name: blend(name, *one) for name in names}) for one in own]


BLOCK_BYTES = 128  # some 32 tokens
MAX_BYTES = 2**25  # of text that a replica is believed to keep


def block_hashes(text: bytes) -> list[int]:
    """For each whole block, a hash of the text up to its end."""
    found, last = list[int](), 0
    for at in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        last = hash((last, text[at : at + BLOCK_BYTES]))
        found.append(last)
    return found


class Prefixes:
    """Beginnings of texts that a replica has read; the least recently used are forgotten first.

    Bytes and not tokens, because the balancer has no vocabulary: it compares the text of prompts
    before any template (`conversation.py`).
    """

    def __init__(self, capacity_bytes: float = MAX_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        # oldest first; a block is never newer than the one before it in its text
        self._blocks: OrderedDict[int, None] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return len(self._blocks) * BLOCK_BYTES

    def match(self, blocks: Sequence[int]) -> int:
        """Bytes of the longest beginning of a text, in whole blocks, that was added."""
        unknown = (i for i, block in enumerate(blocks) if block not in self._blocks)
        return next(unknown, len(blocks)) * BLOCK_BYTES

    def add(self, blocks: Sequence[int]) -> None:
        """Remember a text as the newest; forget the oldest ones until all fit."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while self.num_bytes > self.capacity_bytes:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything: the replica was restarted."""
        self._blocks.clear()
