"""GET /events: a stream of the server's state, made from the engine's regular reports."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from headstart.server import sse
from headstart.server.model import Service, service_of
from headstart.server.routing import Routes
from headstart.server.status import slot_state, speculation_state
from headstart.structures.rss import resident_bytes
from headstart.types.report import WorkerReport

SPEED_SECONDS = 1.0  # over which tokens per second are averaged

routes = Routes()


@routes.get("/events", answer="server-sent events, one state each")
async def events(http: HttpRequest) -> Response:
    """Stream the state of slots, queue, speculation and memory as it changes."""
    states = _states(service_of(http))
    return StreamingResponse(states, media_type="text/event-stream", headers=sse.HEADERS)


async def _states(service: Service) -> AsyncIterator[bytes]:
    speed, last, sent_at = _Speed(), None, 0.0
    while not service.is_stopping:
        report, now = await service.worker.report(), time.monotonic()
        # an unchanged state is repeated every second, as its speed falls to 0
        if report != last or now - sent_at >= 1.0:
            last, sent_at = report, now
            yield sse.event(_state(service, report, speed.update(now, num_tokens(report))))
        await asyncio.sleep(0.2)


class _Speed:
    """Tokens per second over the last SPEED_SECONDS."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def update(self, now: float, num_tokens: int) -> float:
        """Add a count and return the present speed."""
        self._seen.append((now, num_tokens))
        while len(self._seen) > 2 and self._seen[1][0] <= now - SPEED_SECONDS:
            self._seen.popleft()
        then, before = self._seen[0]
        return max(0.0, (num_tokens - before) / (now - then)) if now > then else 0.0


def num_tokens(report: WorkerReport) -> int:
    """Tokens generated since the start, those of running requests included."""
    running = sum(slot.num_emitted for slot in report.slots if slot.is_processing)
    return report.counters.tokens_predicted + running


def _state(service: Service, report: WorkerReport, tokens_per_second: float) -> dict[str, Any]:
    counters, now = report.counters, service.clock()
    return {
        "time": now,
        "uptime_seconds": now - service.started_at,
        "status": service.worker.status,
        "num_processing": report.num_processing,
        "num_waiting": report.num_waiting,
        "num_requests": counters.requests,
        "num_engine_restarts": report.engine_restarts,
        "tokens": num_tokens(report),
        "tokens_per_second": tokens_per_second,
        "num_decodes": counters.num_decodes,
        "num_slot_steps": counters.busy_slots,
        "num_drafts": report.drafts.num_drafts,
        "num_draft_tokens": report.drafts.num_drafted,
        "num_accepted_draft_tokens": report.drafts.num_accepted,
        "seconds": {
            "target": counters.target_seconds,
            "drafts": counters.draft_seconds,
            "other": counters.other_seconds,
        },
        "memory_bytes": {"server": resident_bytes(), "engine": report.memory_bytes},
        "slots": [slot_state(slot, service) for slot in report.slots],
        "speculation": speculation_state(report),
    }
