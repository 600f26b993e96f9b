"""The engine's loop: commands in, events out, one scheduler step after another.

The caller runs it in a thread or in a separate process.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import lru_cache
from typing import Any

from headstart.scheduler.admission import find_media
from headstart.scheduler.offloading import Offloading
from headstart.scheduler.scheduler import WAIT_SECONDS, Scheduler
from headstart.scheduler.sequence import Cells
from headstart.scheduler.slot_actions import end_thoughts
from headstart.structures.progress import Progress
from headstart.structures.system import resident_bytes
from headstart.types.engine import CacheKind
from headstart.types.errors import CapacityError, EngineError, NotSupportedError, RequestError
from headstart.types.media import MediaQuestion
from headstart.types.report import DiskReport, SlotReport, WorkerReport
from headstart.types.request import (
    EmbeddingRequest,
    ErrorEvent,
    Event,
    ReplyEvent,
    SlotAction,
    ThoughtsEnd,
    Work,
)
from headstart.types.widths import WidthClasses
from headstart.worker.pipes import COMMAND_SECONDS, Cancel, Command, Said
from headstart.worker.request_log import log_begin, tell_prompts

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2  # without requests before the warm-up continues: the next one often follows
IDLE_SECONDS = 10.0  # without work, before slots and main memory are written to the disk
SAVE_SECONDS = 60.0  # after a first step until control's state is saved


def _teller(
    scheduler: Scheduler,
    send: Callable[[Said], None],
    clock: Callable[[], float],
    progress: Progress,
) -> Callable[[list[Event]], None]:
    """Sends events, and a report every quarter of a second and when a request ended."""
    last_report = 0.0

    def tell(events: list[Event]) -> None:
        nonlocal last_report
        now = clock()
        if now - last_report > 0.25 or any(one.is_last for one in events):
            last_report = now
            report = make_report(scheduler)
            tell_prompts(report.slots, progress)
            send(report)  # before the end of a request that it counts
        if events:
            send(events)

    return tell


def run_loop(
    scheduler: Scheduler,
    receive: Callable[[float | None], Sequence[Command]],
    send: Callable[[Said], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serve until the command None.

    Raises:
        EngineError: decoding failed repeatedly.

    Args:
        receive: returns queued commands; if there are none, waits for one for the given seconds
            (None: forever).
        send: must not block for long.
    """
    progress, offloading = Progress(clock), scheduler.cache.offloading
    tell = _teller(scheduler, send, clock, progress)
    save_at: float | None = None  # None: nothing was learned since the last save
    write_at: float | None = None  # an idle prompt, to the disk
    scheduler.deliver = lambda: tell(scheduler.take_events())
    if offloading.disk is not None:
        wait([offloading.disk.begin()], WAIT_SECONDS)  # enough for a hundred files, to be counted
    send(make_report(scheduler))
    scheduler.compiling.compiler.prepare()
    commands = deque[Command]()

    def is_wanted() -> bool:
        commands.extend(receive(0.0))
        return bool(commands)

    warm_up = scheduler.warm_up
    is_cold = warm_up is not None  # not tried since the last command
    while True:
        if not commands:
            if _has_work(scheduler):
                commands += receive(0.0)
            elif warm_up is not None and is_cold:  # report ready before measuring
                commands += receive(PAUSE_SECONDS)
                if not commands:
                    is_cold = False
                    warm_up.go_on(is_wanted)
                    send(make_report(scheduler))
            else:
                due = [at for at in (save_at, write_at) if at is not None]
                commands += receive(max(0.0, min(due) - clock()) if due else None)
                if not commands and write_at is not None and clock() >= write_at:
                    write_at = write_idle(offloading, clock())
        if commands:
            is_cold = warm_up is not None and not warm_up.is_done
        until = clock() + COMMAND_SECONDS
        while commands and clock() <= until:
            command = commands.popleft()
            if command is None:
                scheduler.finish()
                scheduler.drafting.save()
                scheduler.drafting.close()
                offloading.finish()
                wait(filter(None, [scheduler.slot_actions.file]), 15.0)  # it is being written
                return
            _obey(scheduler, command, send, progress)
        if has_work := scheduler.has_work:
            write_at = clock() + IDLE_SECONDS if offloading.disk else None
            save_at = clock() + SAVE_SECONDS if save_at is None else save_at
        scheduler.step()
        if scheduler.embeddings:
            tell(scheduler.embeddings.step(is_alone=not scheduler.has_work))
        if scheduler.media and scheduler.media.has_work:
            is_busy = has_work or (scheduler.embeddings and scheduler.embeddings.has_work)
            tell([*scheduler.media.answers(0.0 if is_busy else WAIT_SECONDS)])
        # consecutive: a context that fails several times may stay broken
        if scheduler.num_failed_decodes >= 3:
            raise EngineError(
                f"{scheduler.num_failed_decodes} decodes in a row failed; the engine restarts"
            )
        if save_at is not None and clock() >= save_at:
            scheduler.drafting.save()
            save_at = None


def write_idle(offloading: Offloading, now: float) -> float | None:
    """Write one idle prompt to the disk, for whose copy no request waits; returns when the next one
    is due if no work comes.
    """
    if offloading.write_next():
        return now + PAUSE_SECONDS
    disk = offloading.disk
    # its queue may be full, and the disk may have room later
    is_late = disk is not None and bool(disk.waiting or disk.failure)
    return now + IDLE_SECONDS if is_late else None


def _has_work(scheduler: Scheduler) -> bool:
    others = scheduler.embeddings, scheduler.media
    return scheduler.has_work or any(one is not None and one.has_work for one in others)


def _obey(
    scheduler: Scheduler,
    command: Work | Cancel,
    send: Callable[[Said], None],
    progress: Progress,
) -> None:
    if isinstance(command, Cancel):
        for one in (scheduler, scheduler.embeddings, scheduler.media):
            if one is not None:
                one.cancel(command.request_id)
        return
    try:
        if isinstance(command, SlotAction):
            scheduler.act_on_slot(command)
        elif isinstance(command, ThoughtsEnd):
            reason = end_thoughts(command, scheduler.running)
            send([ReplyEvent(command.request_id, reason)])
        elif isinstance(command, EmbeddingRequest):
            if scheduler.embeddings is None:
                raise NotSupportedError("this engine does not embed; start with --embeddings")
            chunks = dict(find_media(command.media, scheduler.media))
            scheduler.embeddings.submit(command, chunks)
        elif isinstance(command, MediaQuestion):
            if scheduler.media is None:
                raise NotSupportedError("this model reads no images; start with --mmproj")
            scheduler.media.ask(command)
        else:
            scheduler.submit(command)
            log_begin(command, progress)
    except (RequestError, CapacityError, EngineError) as error:
        send([ErrorEvent(command.request_id, error)])


def make_report(scheduler: Scheduler) -> WorkerReport:
    """The scheduler's counters, and its slots now. Copies: the loop continues counting."""
    store, disk = scheduler.cache.offloading.store, scheduler.cache.offloading.disk
    return WorkerReport(
        num_processing=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        counters=replace(scheduler.counters),
        drafts=scheduler.outcomes.total.drafts,
        prompts_in_memory=len(store),
        prompt_bytes_in_memory=store.num_bytes,
        disk=disk.report() if disk else DiskReport(),
        slots=tuple(_slot_report(cells, scheduler) for cells in scheduler.cells),
        speculators=scheduler.outcomes.report(),
        memory_bytes=resident_bytes(),
        control={
            **scheduler.drafting.describe_control(),
            **_describe_widths(scheduler.widths, scheduler.engine.cache_kind),
            "is_warmed_up": scheduler.warm_up is None or scheduler.warm_up.is_done,
        },
    )


@lru_cache(maxsize=1)
def _describe_widths(widths: WidthClasses | None, kind: CacheKind) -> dict[str, Any]:
    """What is known about widths; each report has it."""
    return {
        "widths": str(widths or ""),
        "exact_cost": widths.exact_cost(kind) if widths else None,
    }


def _slot_report(cells: Cells, scheduler: Scheduler) -> SlotReport:
    sequence = cells.user
    if sequence is None:
        return SlotReport(slot_id=cells.seq_id, num_in_cache=cells.length)
    counts, num_prompt = scheduler.outcomes.of(sequence), sequence.num_prompt
    num_processed = num_prompt if sequence.is_generating else min(cells.length, num_prompt)
    return SlotReport(
        slot_id=cells.seq_id,
        request_id=sequence.request.request_id,
        is_processing=True,
        num_prompt=num_prompt,
        num_processed=num_processed,
        num_cached=min(sequence.num_cached, num_processed),  # fewer while it is decoded again
        num_in_cache=cells.length,
        num_emitted=sequence.num_emitted,
        max_tokens=sequence.request.max_tokens,
        drafts=counts.drafts,
        by_speculator=counts.by_speculator,
    )
