"""GET /events: a stream of the server's state, built from the engine's periodic reports."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Scope

from headstart.server import sse
from headstart.server.routing import Routes
from headstart.server.service import Service
from headstart.server.status import slot_state, speculation_state
from headstart.structures.system import resident_bytes
from headstart.types.report import WorkerReport

# between states: creating and showing them takes time on the model's machine
SECONDS = 2.0

Counts = dict[str, float]
routes = Routes()


@routes.get("/events", answer="server-sent events, one state each")
async def events(http: HttpRequest) -> Response:
    """Stream the state of slots, queue, speculation and memory, every two seconds."""
    feed: EventFeed = http.app.state.events
    return await feed.response(http.scope)


class EventFeed:
    """The server's state as an event, rendered once for all listeners and only if there are any."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._listeners = sse.Broadcast()
        # counts of the last three minutes, for new listeners
        self._history: deque[Counts] = deque(maxlen=90)

    async def response(self, scope: Scope) -> StreamingResponse:
        """The state and the last minutes, then each new state.

        Raises:
            ApiError: there are too many listeners.
            QuotaError: the tenant has used its share.
        """
        report = await self._service.worker.report()

        def first() -> bytes:
            return sse.event(self._state(report) | {"history": [*self._history]})

        return self._listeners.response(scope, first)

    async def run(self) -> None:
        """Create states while there are listeners, and keep the counts of the last minutes."""
        while True:
            report = await self._service.worker.report()
            if self._listeners.has_listeners:
                self._listeners.tell(orjson.Fragment(orjson.dumps(self._state(report))))
            self._history.append(_counts(time.time(), report))
            await asyncio.sleep(SECONDS)

    def stop(self) -> None:
        """End all streams."""
        self._listeners.close()

    def _state(self, report: WorkerReport) -> dict[str, Any]:
        now = time.time()
        counts = _counts(now, report)
        counters = report.counters
        return counts | {
            "uptime_seconds": now - self._service.started_at,
            "status": self._service.worker.status,
            "num_processing": report.num_processing,
            "num_waiting": report.num_waiting,
            "num_requests": counters.requests,
            "num_engine_restarts": report.engine_restarts,
            "tokens_per_second": _speed(self._history, counts),
            "num_decodes": counters.num_decodes,
            "num_slot_steps": counters.busy_slots,
            "num_drafts": report.drafts.num_drafts,
            "seconds": {
                "target": counters.target_seconds,
                "drafts": counters.draft_seconds,
                "other": counters.other_seconds,
            },
            "memory_bytes": {"server": resident_bytes(), "engine": report.memory_bytes},
            "prompts_in_memory": {
                "num_prompts": report.prompts_in_memory,
                "num_bytes": report.prompt_bytes_in_memory,
                "num_restored": counters.prompts_restored,
            },
            "prompts_on_disk": asdict(report.disk),
            "slots": [slot_state(slot, self._service) for slot in report.slots],
            "speculation": speculation_state(report),
        }


def _speed(history: Iterable[Counts], now: Counts) -> float:
    """Tokens per second since the newest counts that are at least a second old."""
    old = [one for one in history if now["time"] - one["time"] >= 1.0]
    if not old:
        return 0.0
    return max(0.0, (now["tokens"] - old[-1]["tokens"]) / (now["time"] - old[-1]["time"]))


def num_tokens(report: WorkerReport) -> int:
    """Tokens generated since the start, those of running requests included."""
    running = sum(slot.num_emitted for slot in report.slots if slot.is_processing)
    return report.counters.tokens_predicted + running


def _counts(now: float, report: WorkerReport) -> Counts:
    return {
        "time": now,
        "tokens": num_tokens(report),
        "num_draft_tokens": report.drafts.num_drafted,
        "num_accepted_draft_tokens": report.drafts.num_accepted,
    }
