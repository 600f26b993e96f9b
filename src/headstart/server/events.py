"""GET /events: a stream of the server's state, made from the engine's regular reports."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headstart.server import sse
from headstart.server.errors import ApiError
from headstart.server.model import Service
from headstart.server.routing import Routes
from headstart.server.status import slot_state, speculation_state
from headstart.structures.rss import resident_bytes
from headstart.structures.tenants import may_take
from headstart.types.errors import QuotaError
from headstart.types.report import WorkerReport

SPEED_SECONDS = 1.0  # over which tokens per second are averaged
# 5 kB each, five times a second
MAX_LISTENERS = 100
RETRY_SECONDS = 5

routes = Routes()


@routes.get("/events", answer="server-sent events, one state each")
async def events(http: HttpRequest) -> Response:
    """Stream the state of slots, queue, speculation and memory as it changes."""
    return _Listening(http.app.state.events, http.scope)


class EventFeed:
    """The server's state as an event, rendered once for all listeners and only if there are any."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._listeners: Counter[str] = Counter()  # by tenant
        self._state: dict[str, Any] = {}
        self._latest = b""  # the same, rendered
        self._changed = asyncio.Event()  # of the next state, or of the end
        self._rendering: asyncio.Task[None] | None = None
        # counts of the last three minutes, for those who begin to listen
        self._history: deque[dict[str, float]] = deque(maxlen=90)

    def join(self, tenant: str, *, is_alone: bool) -> None:
        """Count a listener; each must `leave`. `is_alone`: there are no other tenants.

        Raises:
            ApiError: there are too many.
            QuotaError: the tenant must leave as many places to others as it has.
        """
        if not is_alone and not may_take(self._listeners, tenant, MAX_LISTENERS):
            raise QuotaError(
                "listeners",
                f"you have {self._listeners[tenant]} of {MAX_LISTENERS} places for clients of "
                "/events, and as many must stay free for other tenants; poll /slots or /metrics",
                RETRY_SECONDS,
            )
        if self._listeners.total() >= MAX_LISTENERS:
            raise ApiError(
                503,
                f"{MAX_LISTENERS} clients listen to /events, and no more can; try again when one "
                "has left, or poll /slots or /metrics",
                retry_after=RETRY_SECONDS,
            )
        self._listeners[tenant] += 1
        if self._rendering is None:
            self._rendering = asyncio.create_task(self._render())

    def leave(self, tenant: str) -> None:
        """A listener has gone."""
        self._listeners[tenant] -= 1
        if not self._listeners[tenant]:
            del self._listeners[tenant]

    async def listen(self) -> AsyncIterator[bytes]:
        """The latest state with the last minutes, then each new one; a slow listener skips some."""
        is_first = True
        while self._rendering is not None:
            changed = self._changed
            if self._latest:
                history = {"history": list(self._history)}
                yield sse.event(self._state | history) if is_first else self._latest
                is_first = False
            await changed.wait()

    async def _render(self) -> None:
        """Make states until nobody listens or the server stops."""
        service, last, sent_at = self._service, None, 0.0
        seen: deque[tuple[float, int]] = deque()
        try:
            while self._listeners and not service.is_stopping:
                report, now = await service.worker.report(), time.monotonic()
                # an unchanged state is repeated every second, as its speed falls to 0
                if report != last or now - sent_at >= 1.0:
                    last, sent_at = report, now
                    self._state = _state(service, report, _speed(seen, now, num_tokens(report)))
                    self._latest = sse.event(self._state)
                    self._wake_listeners()
                await asyncio.sleep(0.2)
        finally:
            self._latest, self._rendering = b"", None
            self._wake_listeners()

    async def remember(self) -> None:
        """Keep the counts of the last minutes, so that a chart is full when it is opened."""
        service = self._service
        while True:
            await asyncio.sleep(2.0)  # between the states that are kept
            self._history.append(_counts(service.clock(), await service.worker.report()))

    def _wake_listeners(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Listening(StreamingResponse):
    """Counts as a listener until it ends."""

    def __init__(self, feed: EventFeed, scope: Scope) -> None:
        self._feed, self._tenant = feed, scope["headstart.namespace"]
        feed.join(self._tenant, is_alone=not scope["headstart.has_tenants"])
        super().__init__(feed.listen(), media_type="text/event-stream", headers=sse.HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.leave(self._tenant)


def _speed(seen: deque[tuple[float, int]], now: float, num_tokens: int) -> float:
    """Add a count to those of the last SPEED_SECONDS, and return the tokens per second."""
    seen.append((now, num_tokens))
    while len(seen) > 2 and seen[1][0] <= now - SPEED_SECONDS:
        seen.popleft()
    then, before = seen[0]
    return max(0.0, (num_tokens - before) / (now - then)) if now > then else 0.0


def num_tokens(report: WorkerReport) -> int:
    """Tokens generated since the start, those of running requests included."""
    running = sum(slot.num_emitted for slot in report.slots if slot.is_processing)
    return report.counters.tokens_predicted + running


def _counts(now: float, report: WorkerReport) -> dict[str, float]:
    return {
        "time": now,
        "tokens": num_tokens(report),
        "num_draft_tokens": report.drafts.num_drafted,
        "num_accepted_draft_tokens": report.drafts.num_accepted,
    }


def _state(service: Service, report: WorkerReport, tokens_per_second: float) -> dict[str, Any]:
    counters, now = report.counters, service.clock()
    return _counts(now, report) | {
        "uptime_seconds": now - service.started_at,
        "status": service.worker.status,
        "num_processing": report.num_processing,
        "num_waiting": report.num_waiting,
        "num_requests": counters.requests,
        "num_engine_restarts": report.engine_restarts,
        "tokens_per_second": tokens_per_second,
        "num_decodes": counters.num_decodes,
        "num_slot_steps": counters.busy_slots,
        "num_drafts": report.drafts.num_drafts,
        "seconds": {
            "target": counters.target_seconds,
            "drafts": counters.draft_seconds,
            "other": counters.other_seconds,
        },
        "memory_bytes": {"server": resident_bytes(), "engine": report.memory_bytes},
        "slots": [slot_state(slot, service) for slot in report.slots],
        "speculation": speculation_state(report),
    }
