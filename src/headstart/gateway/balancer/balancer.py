"""The set of replicas: in which order to try them for a request; updated from its answer.

No network access. The policy uses the replicas' last reports and the requests sent since.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from headstart.gateway.balancer.conversation import Asked
from headstart.gateway.balancer.learned import BLOCK_BYTES, Mean, Timings, shared_prices
from headstart.gateway.balancer.policy import expected_seconds, ranking, wait_seconds
from headstart.gateway.balancer.replica import Flight, Replica

T = TypeVar("T")


@dataclass(slots=True)
class Fleet:
    """The replicas by name, which have one model, and the conversations that they had."""

    replicas: dict[str, Replica] = field(default_factory=dict)
    tokens_per_byte: Mean = field(default_factory=lambda: Mean(0.25, 256))
    answer_tokens: Mean = field(default_factory=lambda: Mean(128.0))
    # conversation -> replica, tokens of its last answer there, bytes of that request, and a hash of
    # it and of the replica's start
    _last: OrderedDict[str, tuple[str, float, int, int]] = field(default_factory=OrderedDict)
    _owners: OrderedDict[str, str] = field(default_factory=OrderedDict)  # response -> replica

    def available(self) -> list[Replica]:
        """The replicas that accept requests."""
        return [one for one in self.replicas.values() if one.takes_requests]

    def order(self, asked: Asked) -> list[Replica]:
        """The replicas to try, best first; empty while there is none."""
        if not (replicas := self.available()):
            return []
        num_answer = self.answer_tokens.value
        if asked.max_tokens is not None:
            num_answer = min(num_answer, asked.max_tokens)
        costs = {}
        all_prices = shared_prices([one.learned for one in replicas])
        for one, prices in zip(replicas, all_prices, strict=True):
            num_unread = self._num_unread(one, asked)
            costs[one.name] = expected_seconds(one.load(), prices, num_unread, num_answer)
        last = self._last.get(asked.conversation, ("",))[0]
        owner = self._owners.get(asked.needs, "")
        ranked = ranking(costs, asked.conversation, last)
        return [self.replicas[name] for name in sorted(ranked, key=lambda name: name != owner)]

    def knows_owner(self, asked: Asked) -> bool:
        """Whether the stored response that it needs was made through this balancer."""
        return asked.needs in self._owners

    def own(self, response: str, replica: Replica) -> None:
        """Note which replica has a stored response."""
        _remember(self._owners, response, replica.name)

    def start(self, replica: Replica, asked: Asked) -> Flight:
        """Count a request that is sent; `finish` or `Replica.fail` ends the flight."""
        flight = replica.start(asked, self._num_unread(replica, asked))
        if asked.conversation:
            _remember(self._last, asked.conversation, (replica.name, 0.0, 0, 0))
        return flight

    def finish(self, flight: Flight, timings: Timings | None) -> None:
        """Learn from an answer that is over."""
        asked, replica = flight.asked, flight.replica
        replica.flights.remove(flight)
        if timings is None or not asked.text:
            return
        if asked.conversation:
            key = hash((replica.started_at, asked.text))
            last = replica.name, timings.predicted_n, len(asked.text), key
            _remember(self._last, asked.conversation, last)
        self.tokens_per_byte.add(timings.cache_n + timings.prompt_n, len(asked.text))
        self.answer_tokens.add(timings.predicted_n)
        replica.learned.add(timings, flight.num_beside, len(replica.flights))
        for other in self.replicas.values():
            if other is not replica:
                other.learned.fade()

    def _num_unread(self, replica: Replica, asked: Asked) -> float:
        """Estimated tokens of a prompt that a replica has neither read nor written."""
        num_known = replica.prefixes.match(asked.blocks)
        num_tokens = (len(asked.text) - num_known) * self.tokens_per_byte.value
        name, num_written, size, key = self._last.get(asked.conversation, ("", 0.0, 0, 0))
        # an application may give all its conversations one name
        is_kept = name == replica.name and size < num_known + BLOCK_BYTES
        if is_kept and hash((replica.started_at, asked.text[:size])) == key:
            return max(0.0, num_tokens - num_written)
        return num_tokens

    def wait_seconds(self) -> float:
        """Expected wait of a request for a first slot, at the replica where it is shortest."""
        replicas = self.available()
        prices = shared_prices([one.learned for one in replicas])
        pairs = zip(replicas, prices, strict=True)
        return min((wait_seconds(one.load(), price) for one, price in pairs), default=0.0)

    def is_full(self, max_waiting: int) -> bool:
        """Whether the queue of every replica is full."""
        replicas = self.available()
        return bool(replicas) and all(one.load().num_waiting >= max_waiting for one in replicas)


def _remember(known: OrderedDict[str, T], key: str, value: T) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > 100_000:
        known.popitem(last=False)
