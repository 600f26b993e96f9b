"""All replicas: who takes the next request, in which order to try them, and what is on its way.

Knows no network. What the policy decides on is what the replicas said last and what was sent since.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from headstart.gateway.balancer.conversation import Asked
from headstart.gateway.balancer.learned import Timings, shared_prices
from headstart.gateway.balancer.policy import Ask, Candidate, Prices, ranking, wait_seconds
from headstart.gateway.balancer.replica import SHARED_TAIL, Flight, Replica, ask_of
from headstart.structures.passages import hashes

MAX_CONVERSATIONS = 100_000  # whose replica is remembered
Ranking = Callable[[Ask, Sequence[Candidate], str], list[Candidate]]


@dataclass(slots=True)
class Fleet:
    """The replicas by name, and the conversations that they had."""

    replicas: dict[str, Replica] = field(default_factory=dict)
    rank: Ranking = ranking  # a measurement may ask in another order
    _last: OrderedDict[str, str] = field(default_factory=OrderedDict)  # conversation -> replica
    _owners: OrderedDict[str, str] = field(default_factory=OrderedDict)  # response -> replica
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self, replica: Replica) -> None:
        """One more takes requests."""
        self.replicas[replica.name] = replica

    def remove(self, name: str) -> None:
        """Gone for good; its requests on their way are not touched."""
        self.replicas.pop(name, None)

    def available(self) -> list[Replica]:
        """Those that may be sent something."""
        return [one for one in self.replicas.values() if one.takes_requests]

    def order(self, asked: Asked, namespace: str = "") -> list[Replica]:
        """The replicas to try, best first; empty while there is none."""
        replicas = self.available()
        tail = cache(partial(hashes, asked.text[-SHARED_TAIL:]))
        candidates = [
            one.candidate(asked, namespace, prices, tail)
            for one, prices in zip(replicas, _prices(replicas), strict=True)
        ]
        last = self._last.get(asked.conversation, "") if asked.conversation else ""
        ranked = self.rank(ask_of(asked, replicas), candidates, last)
        owner = self._owners.get(asked.needs, "") if asked.needs else ""
        ordered = [self.replicas[one.name] for one in ranked]
        return sorted(ordered, key=lambda one: one.name != owner)

    def knows_owner(self, asked: Asked) -> bool:
        """Whether the stored response that it needs was made through this router."""
        return asked.needs in self._owners

    def own(self, response: str, replica: Replica) -> None:
        """This replica has a stored response."""
        _remember(self._owners, response, replica.name)

    def start(self, replica: Replica, asked: Asked) -> tuple[int, Flight]:
        """A request is sent to it; the number is for `finish` or `fail`."""
        number = next(self._numbers)
        flight = replica.start(number, asked)
        if asked.conversation:
            _remember(self._last, asked.conversation, replica.name)
        return number, flight

    def finish(self, replica: Replica, number: int, text: bytes, timings: Timings | None) -> None:
        """The answer is over."""
        replica.finish(number, text, timings)
        if timings is not None:
            for other in self.replicas.values():
                if other is not replica:
                    other.learned.fade()

    def fail(self, replica: Replica, number: int) -> None:
        """There was no answer."""
        replica.fail(number)

    def wait_seconds(self) -> float:
        """Expected wait of a request for a first slot, at the replica where it is shortest."""
        ask = Ask(num_prompt=0, num_answer=0)
        replicas = self.available()
        pairs = zip(replicas, _prices(replicas), strict=True)
        return min((wait_seconds(ask, one.load(), prices) for one, prices in pairs), default=0.0)

    def is_full(self, max_waiting: int) -> bool:
        """Whether as many requests wait at every replica as may."""
        replicas = self.available()
        return bool(replicas) and all(one.load().num_waiting >= max_waiting for one in replicas)

    def describe(self) -> dict[str, Any]:
        """For people, as JSON."""
        return {"backends": [one.describe() for one in self.replicas.values()]}


def _remember(names: OrderedDict[str, str], key: str, name: str) -> None:
    names[key] = name
    names.move_to_end(key)
    if len(names) > MAX_CONVERSATIONS:
        names.popitem(last=False)


def _prices(replicas: Sequence[Replica]) -> list[Prices]:
    return shared_prices([one.learned for one in replicas])
