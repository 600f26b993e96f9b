"""One ragged batch a step: every generating request with its draft, then prompt chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from headstart.scheduler.prompt_order import PromptOrder
from headstart.scheduler.slot import ActiveRequest
from headstart.types import Batch, Decoded, Engine, Logits

_MICRO_BATCH = 512  # rows that libllama computes at once unless told otherwise


class DraftLimit(NamedTuple):
    """Most draft tokens that a request may verify in a step, and what bounds them."""

    num_tokens: int
    reason: str


def generating_and_unread(running: Sequence[ActiveRequest]) -> tuple[list[ActiveRequest], int]:
    """Those that generate, and the tokens that the others have to read."""
    generating, num_unread = list[ActiveRequest](), 0
    for active in running:
        if active.is_generating:
            generating.append(active)
        else:
            num_unread += active.num_pending
    return generating, num_unread


def draft_limits(
    generating: Sequence[ActiveRequest], engine: Engine, num_slots: int
) -> list[DraftLimit]:
    """The limit of each generating request in this step.

    Bounded by what it may still emit (the step adds one token of its own), by its context, by
    what the memory can roll back, and by a fair share of the batch's rows and outputs.
    """
    reserved = num_slots - len(generating)  # prompts that end in this step need one output each
    outputs = (engine.max_outputs - reserved) // len(generating) - 1
    rows = (engine.max_batch_tokens - reserved) // len(generating) - 1
    share = DraftLimit(min(outputs, rows), "batch full")
    if engine.max_rollback < share.num_tokens:
        share = DraftLimit(engine.max_rollback, "memory takes nothing back")
    limits = []
    for active in generating:
        limit = share
        if (room := engine.context_size - len(active.tokens) - 1) < limit.num_tokens:
            limit = DraftLimit(room, "context full")
        if (left := active.num_left - 1) < limit.num_tokens:
            limit = DraftLimit(left, "max_tokens reached")
        limits.append(limit)
    return limits


def build(
    batch: Batch,
    running: Sequence[ActiveRequest],
    engine: Engine,
    order: PromptOrder,
    max_prompt_rows: int,
) -> list[ActiveRequest]:
    """Fill the batch; returns the requests in it, in the order of their rows, `num_rows` set.

    Prompts share about `max_prompt_rows`.
    """
    batch.clear()
    included: list[ActiveRequest] = []
    reading: list[ActiveRequest] = []
    followers: list[ActiveRequest] = []
    seq_ids, positions, tokens = list[int](), list[int](), list[int]()
    for active in running:
        if not active.is_generating:
            (reading if active.leader is None else followers).append(active)
            continue
        drafted = active.proposal.tokens
        active.num_rows = rows = 1 + len(drafted)
        seq_ids += [active.slot_id] * rows
        positions += range(active.num_decoded, active.num_decoded + rows)
        tokens.append(active.tokens[-1])
        tokens += drafted
        included.append(active)
    batch.extend(seq_ids, positions, tokens)
    if reading:
        room = engine.max_batch_tokens - batch.num_rows
        num_rows = min(room, prompt_rows(batch.num_rows, max_prompt_rows, engine.attention_tile))
        shares = zip(reading, order.share(reading, num_rows, followers), strict=True)
        included += _add_prompts(batch, [one for one in shares if one[1]], engine)
    return included


def prompt_rows(num_others: int, wanted: int, tile: int) -> int:
    """Prompt rows beside so many others: near what is wanted, so that the step is whole tiles.

    The last tile of a step takes as long with one row as with all.
    """
    if wanted < tile:
        return wanted
    tiles = round((num_others + wanted) / tile)
    return max(tiles, num_others // tile + 1) * tile - num_others


def pad(batch: Batch, num_rows: int, seq_id: int) -> None:
    """Add rows without outputs that are forgotten after the decode.

    They repeat tokens of the batch, so that a mixture of experts reads no other experts for them.
    """
    tokens = batch.tokens[: batch.num_rows]
    batch.add(seq_id, 0, np.resize(tokens, num_rows).tolist(), 0)


def decode_like_last(
    engine: Engine, batch: Batch, num_rows: int, meanwhile: Callable[[], None] | None
) -> Logits:
    """Decode with so many rows more, of the last request and with outputs, and forget them.

    So rows, outputs and sequences are those of the last decode, whose graph libllama then reuses.
    Returns the logits of the rows that were asked for.
    """
    start, num_outputs = batch.num_rows, batch.num_outputs
    seq_id, length = int(batch.seq_ids[start - 1]), int(batch.positions[start - 1]) + 1
    batch.add(seq_id, length, [int(batch.tokens[start - 1])] * num_rows, num_rows)
    try:
        return engine.decode(batch, meanwhile)[:num_outputs]
    finally:
        engine.truncate(seq_id, length)
        batch.wants_logits[start : batch.num_rows], batch.num_outputs = 0, num_outputs


def _add_prompts(
    batch: Batch, shares: Sequence[tuple[ActiveRequest, int]], engine: Engine
) -> list[ActiveRequest]:
    included = []
    room = min(engine.max_batch_tokens, _MICRO_BATCH) - batch.num_rows
    room -= sum(rows for _, rows in shares)
    # outputs for scores; each prompt may need that of its last row
    num_free = engine.max_outputs - batch.num_outputs - len(shares)
    for active, rows in shares:
        # a rest of less than a tile would take as long as a tile in the next step, or longer
        if 0 < (rest := active.num_pending - rows) < min(engine.attention_tile, room + 1):
            rows += rest
            room -= rest
        if active.pauses:
            rows = min(rows, active.pauses[0] - active.num_decoded)
        num_scored = 0
        if active.request.wants_prompt_scores:
            rows = num_scored = min(rows, 1 + max(0, num_free))
            num_free -= rows - 1
        active.num_rows = rows
        tokens = active.tokens[active.num_decoded : active.num_decoded + rows]
        is_whole = rows == active.num_pending
        batch.add(active.slot_id, active.num_decoded, tokens, max(num_scored, int(is_whole)))
        included.append(active)
    return included


def mean_context(batch: Batch, in_batch: Sequence[ActiveRequest]) -> int:
    """Tokens that a row of the batch attended to on average."""
    attended = sum(a.num_rows * (a.num_decoded + a.num_rows // 2) for a in in_batch)
    return attended // batch.num_rows


def output_rows(batch: Batch, logits: Logits) -> Decoded:
    """The rows that produced logits, for speculators: read-only, they are sampled afterwards."""
    rows = batch.wants_logits[: batch.num_rows].astype(bool)
    view = logits.view()
    view.flags.writeable = False
    return Decoded(
        batch.seq_ids[: batch.num_rows][rows],
        batch.positions[: batch.num_rows][rows],
        batch.tokens[: batch.num_rows][rows],
        view,
    )
