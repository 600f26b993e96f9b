"""The engine's own loop: commands in, events out, one scheduler step after another.

Runs in a thread or in a process of its own; which one it is, is the caller's business.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headstart.errors import CapacityError, RequestError
from headstart.scheduler.report import SlotReport, WorkerReport
from headstart.scheduler.request import Event, Request, error_event
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.slot import Slot

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.25  # between reports while requests run
SAVE_SECONDS = 60.0  # between two writes of what control learned, when idle


@dataclass(frozen=True, slots=True)
class Cancel:
    """Command: stop a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Command: end the loop."""


Command = Request | Cancel | Stop


@dataclass(frozen=True, slots=True)
class Message:
    """What the loop sends: events in order, and now and then a report."""

    events: Sequence[Event] = ()
    report: WorkerReport | None = None


def run_loop(
    scheduler: Scheduler, receive: Callable[[bool], Sequence[Command]], send: Callable[[Message], None]
) -> None:
    """Serve until a Stop command.

    Args:
        receive: returns waiting commands; blocks for at least one if its argument is true.
        send: hands a message over; must not block for long.
    """
    last_report, last_save = 0.0, time.monotonic()
    send(Message(report=make_report(scheduler)))
    while True:
        if not scheduler.has_work and time.monotonic() - last_save > SAVE_SECONDS:
            scheduler.drafting.save()
            last_save = time.monotonic()
        for command in receive(not scheduler.has_work):
            if isinstance(command, Stop):
                scheduler.drafting.close()
                return
            _obey(scheduler, command, send)
        scheduler.step()
        events = scheduler.take_events()
        now = time.monotonic()
        is_due = now - last_report > REPORT_SECONDS or any(not hasattr(e, "tokens") for e in events)
        if is_due:
            last_report = now
        if events or is_due:
            send(Message(events, make_report(scheduler) if is_due else None))


def _obey(scheduler: Scheduler, command: Request | Cancel, send: Callable[[Message], None]) -> None:
    if isinstance(command, Cancel):
        scheduler.cancel(command.request_id)
        return
    try:
        scheduler.submit(command)
    except (RequestError, CapacityError) as error:
        send(Message([error_event(command.request_id, error)]))


def make_report(scheduler: Scheduler) -> WorkerReport:
    """The scheduler's counters and slots now."""
    counters = scheduler.counters
    positions = counters.accepted_by_position
    return WorkerReport(
        num_processing=sum(s.run is not None for s in scheduler.slots),
        num_waiting=len(scheduler.waiting),
        requests=counters.requests,
        requests_failed=counters.requests_failed,
        prompt_tokens=counters.prompt_tokens,
        prompt_tokens_cached=counters.prompt_tokens_cached,
        prompt_seconds=counters.prompt_seconds,
        tokens_predicted=counters.tokens_predicted,
        predicted_seconds=counters.predicted_seconds,
        num_decodes=counters.num_decodes,
        busy_slots=counters.busy_slots,
        max_tokens_in_cache=counters.max_tokens_in_cache,
        drafts=counters.drafts,
        drafted=counters.drafted,
        accepted=counters.accepted,
        accepted_by_position=tuple(positions[i] for i in range(max(positions, default=-1) + 1)),
        preemptions=counters.preemptions,
        slots=tuple(_slot_report(slot) for slot in scheduler.slots),
        speculators=tuple(seat.report() for seat in scheduler.drafting.seats.values()),
        reasons=dict(scheduler.drafting.reasons),
        control=scheduler.drafting.controller.describe(),
    )


def _slot_report(slot: Slot) -> SlotReport:
    run = slot.run
    if run is None:
        return SlotReport(slot_id=slot.slot_id, num_in_cache=len(slot.kept))
    return SlotReport(
        slot_id=slot.slot_id,
        request_id=run.request.request_id,
        is_processing=True,
        num_prompt=run.num_prompt,
        num_processed=min(run.num_decoded, run.num_prompt),
        num_cached=run.num_cached,
        num_in_cache=run.num_decoded,
        num_emitted=run.num_emitted,
        max_tokens=run.request.max_tokens,
        num_drafted=run.num_drafted,
        num_accepted=run.num_accepted,
        drafted_by=dict(run.drafted_by),
        reasons=dict(run.reasons),
    )
