"""One replica: its health, its load, and its cached prompts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.gateway.balancer.conversation import Asked
from headstart.gateway.balancer.policy import Load, Prices
from headstart.gateway.balancer.prefixes import Prefixes

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

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_healthy: bool = True  # unless a poll failed
    why_not: str = ""  # why it is unhealthy
    is_draining: bool = False
    reported: Load = field(default_factory=Load)  # by the replica, last, for all its clients
    num_reported_own: int = 0  # requests of this balancer in that report
    started_at: str | None = None  # as reported; None before the first report
    flights: set[Flight] = field(default_factory=set)
    prices: Prices = field(default_factory=Prices)
    prefixes: Prefixes = field(default_factory=Prefixes)
    num_sent: int = 0
    num_failed: int = 0
    num_silent: int = 0  # polls in a row without an answer

    @property
    def takes_requests(self) -> bool:
        return self.is_healthy and not self.is_draining

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
        self.reported, self.num_reported_own = reported, len(self.flights)
        self.is_healthy, self.why_not = True, ""

    def lose(self, reason: str) -> None:
        """Send it nothing until it answers a poll again."""
        if self.is_healthy:
            log.warning("%s takes no requests: %s", self.name, reason)
        self.is_healthy, self.why_not = False, reason

    def describe(self) -> dict[str, Any]:
        """The state as JSON, for display."""
        load, prices = self.load(), self.prices
        state = "healthy" if self.is_healthy else "unhealthy"
        return {
            "name": self.name,
            "url": self.url,
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
