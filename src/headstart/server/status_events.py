"""GET /events: a stream of the server's state, built from the engine's periodic reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server import sse
from headstart.server.routing import Routes
from headstart.server.service import Service, service_of
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
    service = service_of(http)
    report = await service.worker.report()

    def first() -> bytes:
        return sse.event(_state(report, service) | {"history": [*service.history]})

    return service.listeners.response(http.scope, first)


async def tell_states(service: Service) -> None:
    """Render the state once for all listeners, if there are any, and keep the counts of the last
    minutes for new ones.
    """
    while True:
        report = await service.worker.report()
        if service.listeners.has_listeners:
            service.listeners.tell(orjson.Fragment(orjson.dumps(_state(report, service))))
        service.history.append(_counts(time.time(), report))
        await asyncio.sleep(SECONDS)


def _state(report: WorkerReport, service: Service) -> dict[str, Any]:
    now = time.time()
    counts = _counts(now, report)
    counters = report.counters
    return counts | {
        "uptime_seconds": now - service.started_at,
        "status": service.worker.status,
        "num_processing": report.num_processing,
        "num_waiting": report.num_waiting,
        "num_requests": counters.requests,
        "num_engine_restarts": report.engine_restarts,
        "tokens_per_second": _speed(service.history, counts),
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
        "slots": [slot_state(slot, service) for slot in report.slots],
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
