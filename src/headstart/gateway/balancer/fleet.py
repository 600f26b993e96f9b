"""The replicas: the health, load and cached prompts of each, and in which order to try them.

No network access. The policy uses the replicas' last reports and the requests sent since.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import astuple, dataclass, field
from statistics import fmean
from typing import Any

from headstart.gateway.balancer.conversation import BLOCK_BYTES, Asked, Prefixes, Timings
from headstart.gateway.balancer.policy import (
    Load,
    Prices,
    expected_seconds,
    follow,
    ranking,
    wait_seconds,
)
from headstart.gateway.proxy import Backend

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Flight:
    """A request that a replica works on."""

    replica: Replica
    asked: Asked
    num_beside: int  # requests that ran there when it was sent
    num_prompt: float  # tokens that the replica is expected to read
    has_begun: bool = False  # the first piece of its answer came


@dataclass(slots=True, eq=False)
class Replica:
    """The state of one server, and the requests that this balancer has sent to it."""

    backend: Backend
    why_not: str = ""  # why it is unhealthy, if a poll failed
    is_draining: bool = False
    reported: Load = field(default_factory=Load)  # by the replica, last, for all its clients
    num_reported_own: int = 0  # requests of this balancer in that report, at most
    most_flights: int = 0  # at one time since that report
    started_at: str | None = None  # as reported; None before the first report
    flights: set[Flight] = field(default_factory=set)
    prices: Prices = field(default_factory=Prices)
    prefixes: Prefixes = field(default_factory=Prefixes)
    num_sent: int = 0
    num_failed: int = 0
    num_silent: int = 0  # polls in a row without an answer

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def is_healthy(self) -> bool:
        return not self.why_not

    def load(self) -> Load:
        """The current load: its last report plus the requests sent since."""
        reported = self.reported
        others = max(0, reported.num_running + reported.num_waiting - self.num_reported_own)
        num_busy = others + len(self.flights)
        slots = max(1, reported.num_slots)
        return Load(
            num_slots=slots,
            num_running=min(num_busy, slots),
            num_waiting=max(0, num_busy - slots),
            prompt_tokens_ahead=sum(one.num_prompt for one in self.flights if not one.has_begun),
        )

    def fail(self, flight: Flight) -> None:
        """Count a request without an answer."""
        self.flights.discard(flight)
        self.num_failed += 1

    def hear(self, reported: Load, started_at: str = "") -> None:
        """Store its report; after a restart of the server forget its prefixes."""
        if self.started_at and started_at and self.started_at != started_at:
            self.prefixes = Prefixes()
        self.started_at = started_at
        # a report is a little old: requests that have ended since may be in it, and taken for
        # others' they would send conversations to a replica that does not know them
        self.reported, self.num_reported_own = reported, self.most_flights
        self.most_flights, self.why_not = len(self.flights), ""

    def lose(self, reason: str) -> None:
        """Send it nothing until it answers a poll again."""
        if self.is_healthy:
            log.warning("%s takes no requests: %s", self.name, reason)
        self.why_not = reason

    def describe(self) -> dict[str, Any]:
        """The state as JSON, for display."""
        load, prices = self.load(), self.prices
        state = "healthy" if self.is_healthy else "unhealthy"
        return {
            "name": self.name,
            "url": self.backend.url,
            "state": "draining" if self.is_draining else state,
            "why_not": self.why_not,
            "num_slots": load.num_slots,
            "num_running": load.num_running,
            "num_waiting": load.num_waiting,
            "num_in_flight": len(self.flights),
            "num_sent": self.num_sent,
            "num_failed": self.num_failed,
            "prompt_token_ms": 1000 * prices.prompt_token,
            "token_ms": 1000 * prices.token,
            "prefix_bytes": self.prefixes.num_bytes,
        }


@dataclass(slots=True)
class Fleet:
    """The replicas by name, which have one model, and the conversations that they had."""

    replicas: dict[str, Replica] = field(default_factory=dict)
    tokens_per_byte: float = 0.25
    answer_tokens: float = 128.0
    # conversation -> replica, tokens of its last answer there, bytes of that request, and a hash of
    # it and of the replica's start
    _last: OrderedDict[str, tuple[str, float, int, int]] = field(default_factory=OrderedDict)

    def add(self, backend: Backend) -> None:
        """Begin to use a replica; at first it is taken for one like the others."""
        known = [astuple(one.prices) for one in self.replicas.values()]
        prices = Prices(*map(fmean, zip(*known, strict=True)))
        self.replicas[backend.name] = Replica(backend, prices=prices)

    def available(self) -> list[Replica]:
        return [one for one in self.replicas.values() if one.is_healthy and not one.is_draining]

    def order(self, asked: Asked) -> list[Replica]:
        """The replicas to try, best first; empty while there is none. A stored response may be of
        one that drains.
        """
        num_answer = self.answer_tokens
        if asked.max_tokens is not None:
            num_answer = min(num_answer, asked.max_tokens)
        costs = {}
        for one in self.replicas.values():
            if not one.is_healthy or (one.is_draining and not asked.needs):
                continue
            num_unread = self._num_unread(one, asked)
            costs[one.name] = expected_seconds(one.load(), one.prices, num_unread, num_answer)
        last = self._last.get(asked.conversation, ("",))[0]
        return [self.replicas[name] for name in ranking(costs, asked.conversation, last)]

    def start(self, replica: Replica, asked: Asked) -> Flight:
        """Count a request that is sent; `finish` or `Replica.fail` ends the flight. Later requests
        find its prompt in the replica's `prefixes`.
        """
        num_unread = self._num_unread(replica, asked)
        flight = Flight(replica, asked, replica.load().num_running, num_unread)
        replica.flights.add(flight)
        replica.most_flights = max(replica.most_flights, len(replica.flights))
        replica.num_sent += 1
        replica.prefixes.add(asked.blocks)
        self._remember(asked.conversation, (replica.name, 0.0, 0, 0))
        return flight

    def finish(self, flight: Flight, timings: Timings | None) -> None:
        """Learn from an answer that is over."""
        asked, replica = flight.asked, flight.replica
        replica.flights.remove(flight)
        if timings is None or not asked.text:
            return
        key = hash((replica.started_at, asked.text))
        last = replica.name, timings.predicted_n, len(asked.text), key
        self._remember(asked.conversation, last)
        num_prompt = timings.cache_n + timings.prompt_n
        self.tokens_per_byte = follow(self.tokens_per_byte, num_prompt / len(asked.text))
        self.answer_tokens = follow(self.answer_tokens, timings.predicted_n)
        for one in self.replicas.values():
            # one that was slow when it was asked long ago would never be asked again
            share = 1.0 if one is replica else 0.3 / len(self.replicas)
            one.prices.learn(timings, flight.num_beside, len(replica.flights), share)

    def _num_unread(self, replica: Replica, asked: Asked) -> float:
        """Estimated tokens of a prompt that a replica has neither read nor written."""
        num_known = replica.prefixes.match(asked.blocks)
        num_tokens = (len(asked.text) - num_known) * self.tokens_per_byte
        name, num_written, size, key = self._last.get(asked.conversation, ("", 0.0, 0, 0))
        # an application may give all its conversations one name
        is_kept = name == replica.name and size < num_known + BLOCK_BYTES
        if is_kept and hash((replica.started_at, asked.text[:size])) == key:
            return max(0.0, num_tokens - num_written)
        return num_tokens

    def wait_seconds(self) -> float:
        """Expected wait of a request for a first slot, at the replica where it is shortest."""
        waits = (wait_seconds(one.load(), one.prices) for one in self.available())
        return min(waits, default=0.0)

    def is_full(self, max_waiting: int) -> bool:
        """Whether the queue of every replica is full."""
        replicas = self.available()
        return bool(replicas) and all(one.load().num_waiting >= max_waiting for one in replicas)

    def _remember(self, conversation: str, last: tuple[str, float, int, int]) -> None:
        if conversation:
            self._last[conversation] = last
            self._last.move_to_end(conversation)
        if len(self._last) > 100_000:
            self._last.popitem(last=False)
