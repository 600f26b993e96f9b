"""The set of replicas: in which order to try them for a request; updated from its answer.

No network access. The policy uses the replicas' last reports and the requests sent since.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from statistics import fmean

from headstart.gateway.balancer.conversation import Asked
from headstart.gateway.balancer.learned import Timings, block_hashes, shared_prices
from headstart.gateway.balancer.policy import expected_seconds, ranking, wait_seconds
from headstart.gateway.balancer.replica import Flight, Replica


@dataclass(slots=True)
class Fleet:
    """The replicas by name, and the conversations that they had."""

    replicas: dict[str, Replica] = field(default_factory=dict)
    _last: OrderedDict[str, str] = field(default_factory=OrderedDict)  # conversation -> replica
    _owners: OrderedDict[str, str] = field(default_factory=OrderedDict)  # response -> replica

    def available(self) -> list[Replica]:
        """The replicas that accept requests."""
        return [one for one in self.replicas.values() if one.takes_requests]

    def order(self, asked: Asked) -> list[Replica]:
        """The replicas to try, best first; empty while there is none."""
        if not (replicas := self.available()):
            return []
        all_learned = [one.learned for one in replicas]
        per_byte = fmean(one.tokens_per_byte.value for one in all_learned)
        num_answer = fmean(one.answer_tokens.value for one in all_learned)
        if asked.max_tokens is not None:
            num_answer = min(num_answer, asked.max_tokens)
        costs = {}
        for one, prices in zip(replicas, shared_prices(all_learned), strict=True):
            num_unread = (len(asked.text) - one.prefixes.match(asked.blocks)) * per_byte
            costs[one.name] = expected_seconds(one.load(), prices, num_unread, num_answer)
        last = self._last.get(asked.conversation, "") if asked.conversation else ""
        owner = self._owners.get(asked.needs, "") if asked.needs else ""
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
        if asked.conversation:
            _remember(self._last, asked.conversation, replica.name)
        return replica.start(asked)

    def finish(self, flight: Flight, text: bytes, timings: Timings | None) -> None:
        """Learn from an answer that is over; `text` is the conversation with it."""
        blocks = block_hashes(text, flight.asked.blocks) if text else []
        flight.replica.finish(flight, blocks, timings)
        if timings is not None:
            for other in self.replicas.values():
                if other is not flight.replica:
                    other.learned.fade()

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


def _remember(names: OrderedDict[str, str], key: str, name: str) -> None:
    names[key] = name
    names.move_to_end(key)
    if len(names) > 100_000:
        names.popitem(last=False)
