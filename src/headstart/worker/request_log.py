"""Logs requests: their start, the progress of long prompts, and their end as in llama-server."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from headstart.structures.progress import Progress
from headstart.types.errors import in_words
from headstart.types.report import SlotReport
from headstart.types.request import EmbeddingEvent, ErrorEvent, Request, RequestStats
from headstart.types.speculation_stats import SpeculationStats

log = logging.getLogger(__name__)


def log_begin(request: Request, progress: Progress) -> None:
    """Log a request that was accepted: its first step may take long."""
    num_prompt = len(request.prompt)
    log.info("request %s: begins with %d prompt tokens", request.request_id, num_prompt)
    progress.begin(f"request {request.request_id}", f"prompt, 0 of {num_prompt} tokens")


def tell_prompts(slots: Iterable[SlotReport], progress: Progress) -> None:
    """Update the progress of long prompts, from reports on all slots."""
    progress.tell(
        {
            f"request {one.request_id}": f"prompt, {one.num_processed} of {one.num_prompt} tokens"
            for one in slots
            if one.is_processing and one.num_processed < one.num_prompt
        }
    )


def log_request(request_id: str, stats: RequestStats, reason: str) -> None:
    """Log a request that ended: its prompt, its speed, and what was drafted for it."""
    rate = stats.num_timed / stats.generation_seconds if stats.generation_seconds else 0.0
    log.info(
        "request %s: slot %d, prompt %d tokens (%d cached), TTFT %.0f ms, %d tokens at %.1f "
        "tokens/s, %s, %s",
        request_id,
        stats.slot_id,
        stats.num_prompt,
        stats.num_cached,
        1000 * (stats.queue_seconds + stats.prompt_seconds),
        stats.num_emitted,
        rate,
        reason,
        _speculation(stats),
    )


def log_embedding(event: EmbeddingEvent) -> None:
    """Log texts that were embedded."""
    log.info(
        "request %s: embedded %d tokens in %.0f ms",
        event.request_id,
        event.num_tokens,
        1000 * event.seconds,
    )


def log_error(event: ErrorEvent) -> None:
    """Log a failed request: with its statistics if it ran, otherwise as refused."""
    words = " ".join(in_words(event.error).split())
    if event.stats is None:
        log.info("request %s refused: %s", event.request_id, words)
    else:
        log_request(event.request_id, event.stats, f"failed with {words}")


def _speculation(stats: RequestStats) -> str:
    """What was drafted, by which speculators, or why nothing was."""
    parts, drafts, by_speculator = ["no drafts"], stats.drafts, stats.by_speculator
    if num_drafted := drafts.num_drafted:
        num_accepted = drafts.num_accepted
        parts = [
            f"draft acceptance = {num_accepted / num_drafted:.5f} "
            f"({num_accepted} accepted / {num_drafted} drafted), "
            f"acceptance length = {stats.acceptance_length:.2f}"
        ]
    several = len(by_speculator) > 1
    if several or num_drafted:
        parts += [_of_one(*one, with_reasons=several) for one in by_speculator.items()]
    if drafts.reasons:
        parts.append(f"without a draft: {_counted(drafts.reasons)}")
    return "; ".join(parts)


def _of_one(name: str, stats: SpeculationStats, *, with_reasons: bool) -> str:
    """One speculator's part of the log line, with reasons if it is one of several."""
    what = f"{name} no drafts"
    if num_drafts := stats.num_drafts:
        what = (
            f"{name} {stats.num_accepted}/{stats.num_drafted} in {num_drafts} drafts, "
            f"{stats.num_rows_wasted} rows wasted"
        )
    return f"{what} ({_counted(stats.reasons)})" if with_reasons and stats.reasons else what


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())
