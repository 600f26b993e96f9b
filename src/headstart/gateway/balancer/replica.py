"""One replica as the router sees it: is it there, what does it do, what has it read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.gateway.balancer.conversation import Asked
from headstart.gateway.balancer.learned import Learned, Timings, better_capacity
from headstart.gateway.balancer.policy import Ask, Candidate, Load, Prices
from headstart.gateway.balancer.prefix_tree import PrefixTree
from headstart.structures.passages import Digest

TREE_BYTES = 2**25  # of text that a replica is at first, and at most, believed to keep
SHARED_TAIL = 8192  # bytes at the end of a text that are looked for in corpora
Tail = Callable[[], NDArray[np.uint64]]  # computed where there is a corpus to compare with
MAX_DIGESTS = 64  # tenants whose corpora are known, per replica


@dataclass(slots=True, eq=False)
class Flight:
    """A request that a replica works on."""

    asked: Asked
    num_known_bytes: int
    num_beside: int  # requests that ran there when it was sent
    num_prompt: float  # tokens that it is expected to read
    has_begun: bool = False  # the first piece of its answer came


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What a replica said of itself last. All of it is about all its clients."""

    num_slots: int = 4
    num_running: int = 0
    num_waiting: int = 0
    started_at: str = ""


@dataclass(slots=True, eq=False)
class Replica:
    """What is known of one server, and what this router has sent to it."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_healthy: bool = True  # until it is found otherwise
    why_not: str = ""  # it is not healthy
    is_draining: bool = False
    reported: Reported = field(default_factory=Reported)
    # of this router's requests at the time of the report: those are in its numbers already
    num_reported_own: int = 0
    flights: dict[int, Flight] = field(default_factory=dict)
    learned: Learned = field(default_factory=Learned)
    tree: PrefixTree = field(default_factory=lambda: PrefixTree(TREE_BYTES))
    digests: dict[str, Digest] = field(default_factory=dict)  # by namespace
    num_sent: int = 0
    num_failed: int = 0

    @property
    def takes_requests(self) -> bool:
        return self.is_healthy and not self.is_draining

    def load(self) -> Load:
        """What it does now: its own report, and what was sent to it since."""
        reported = self.reported
        others = max(0, reported.num_running + reported.num_waiting - self.num_reported_own)
        num_busy = others + len(self.flights)
        slots = max(1, reported.num_slots)
        return Load(
            num_slots=slots,
            num_running=min(num_busy, slots),
            num_waiting=max(0, num_busy - slots),
            prompt_tokens_ahead=sum(
                one.num_prompt for one in self.flights.values() if not one.has_begun
            ),
        )

    def candidate(self, asked: Asked, namespace: str, prices: Prices, tail: Tail) -> Candidate:
        """What the policy has to know of it about one request; `tail` are the text's passages."""
        tokens_per_byte = self.learned.tokens_per_byte.value
        digest = self.digests.get(namespace)
        return Candidate(
            name=self.name,
            load=self.load(),
            prices=prices,
            num_known=self.tree.match(asked.text) * tokens_per_byte,
            corpus_share=digest.share_of(tail()) if digest else 0.0,
        )

    def start(self, number: int, asked: Asked) -> Flight:
        """A request is sent: the next ones reckon with it, and with what it will have read."""
        known = self.tree.match(asked.text)
        unread = (len(asked.text) - known) * self.learned.tokens_per_byte.value
        flight = Flight(asked, known, self.load().num_running, unread)
        self.flights[number] = flight
        self.num_sent += 1
        if asked.text:
            self.tree.add(asked.text)
        return flight

    def finish(self, number: int, text: bytes, timings: Timings | None) -> None:
        """Its answer is over; `text` is the conversation with it."""
        flight = self.flights.pop(number)
        if text:
            self.tree.add(text)
        if timings is None or not flight.asked.text:
            return
        expected = flight.num_known_bytes * self.learned.tokens_per_byte.value
        self.tree.capacity_bytes = better_capacity(
            self.tree.capacity_bytes, TREE_BYTES, expected, timings.num_cached
        )
        self.tree.make_room()
        num_bytes = len(flight.asked.text)
        self.learned.add(timings, num_bytes, flight.num_beside, len(self.flights))

    def fail(self, number: int) -> None:
        """It did not answer."""
        self.flights.pop(number, None)
        self.num_failed += 1

    def hear(self, reported: Reported) -> None:
        """Take in what it says of itself; a server that was restarted has read nothing."""
        before = self.reported.started_at
        if before and reported.started_at and before != reported.started_at:
            self.forget()
        self.reported, self.num_reported_own = reported, len(self.flights)
        self.is_healthy, self.why_not = True, ""

    def lose(self, reason: str) -> None:
        """It cannot be used until it answers again; what it had read may be gone."""
        self.is_healthy, self.why_not = False, reason

    def forget(self) -> None:
        """It has read nothing, and its corpora are unknown."""
        self.tree.clear()
        self.digests.clear()

    def keep_digest(self, namespace: str, digest: Digest) -> None:
        """What its corpora hold for one tenant; the tenant heard of longest ago goes first."""
        self.digests.pop(namespace, None)
        self.digests[namespace] = digest
        while len(self.digests) > MAX_DIGESTS:
            del self.digests[next(iter(self.digests))]

    def describe(self) -> dict[str, Any]:
        """For people, as JSON."""
        load = self.load()
        prices = self.learned.prices()
        return {
            "name": self.name,
            "url": self.url,
            "state": "draining"
            if self.is_draining
            else "healthy"
            if self.is_healthy
            else "unhealthy",
            "why_not": self.why_not,
            "num_slots": load.num_slots,
            "num_running": load.num_running,
            "num_waiting": load.num_waiting,
            "num_in_flight": len(self.flights),
            "num_sent": self.num_sent,
            "num_failed": self.num_failed,
            "prompt_token_ms": 1000 * prices.prompt_token,
            "token_ms": 1000 * prices.token,
            "prefix_bytes": self.tree.num_bytes,
        }


def ask_of(asked: Asked, replicas: Sequence[Replica]) -> Ask:
    """What a request will probably take, as the fleet's answers were."""
    n = max(1, len(replicas))
    per_byte = sum(one.learned.tokens_per_byte.value for one in replicas) / n
    answer = sum(one.learned.answer_tokens.value for one in replicas) / n
    if asked.max_tokens is not None:
        answer = min(answer, asked.max_tokens)
    return Ask(
        num_prompt=len(asked.text) * per_byte, num_answer=answer, conversation=asked.conversation
    )
