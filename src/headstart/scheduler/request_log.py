"""The log line of a request: one when it ends, with the words llama-server's users look for."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headstart.scheduler.request import DraftCounts, ErrorEvent, RequestStats

log = logging.getLogger(__name__)


def log_request(request_id: str, stats: RequestStats, reason: str) -> None:
    """Log a request that ended: its prompt, its speed, and what was drafted for it."""
    rate = stats.num_emitted / stats.generation_seconds if stats.generation_seconds else 0.0
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


def log_error(event: ErrorEvent) -> None:
    """A request that failed has done something before; one that was refused has not."""
    message = " ".join(event.message.split())
    if event.stats is None:
        log.info("request %s refused: %s: %s", event.request_id, event.error, message)
    else:
        log_request(event.request_id, event.stats, f"failed with {event.error}: {message}")


def _speculation(stats: RequestStats) -> str:
    """What was drafted, by whom, and why nothing was."""
    parts = ["no drafts"]
    if stats.num_drafted:
        share = stats.num_accepted / stats.num_drafted
        parts = [
            f"draft acceptance = {share:.5f} ({stats.num_accepted} accepted / "
            f"{stats.num_drafted} drafted), acceptance length = {stats.acceptance_length:.2f}"
        ]
    several = len(stats.drafted_by) > 1
    if several or stats.num_drafted:
        parts += [
            _drafted_by(name, counts, with_reasons=several)
            for name, counts in stats.drafted_by.items()
        ]
    if stats.reasons:
        parts.append(f"without a draft: {_counted(stats.reasons)}")
    if not stats.is_valid:
        parts.append("THE TEXT IS NOT VALID: draft tokens were accepted unseen, for a measurement")
    return "; ".join(parts)


def _drafted_by(name: str, counts: DraftCounts, *, with_reasons: bool) -> str:
    """One speculator; the only one has the reasons of the request."""
    what = f"{name} no drafts"
    if counts.drafts:
        what = (
            f"{name} {counts.accepted}/{counts.drafted} in {counts.drafts} drafts, "
            f"{counts.rows_wasted} rows wasted"
        )
    return f"{what} ({_counted(counts.reasons)})" if with_reasons and counts.reasons else what


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())
