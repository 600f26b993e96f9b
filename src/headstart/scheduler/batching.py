"""One ragged batch a step: every answer's newest token with its draft, then chunks of prompts."""

from __future__ import annotations

import numpy as np

from headstart.scheduler.prompt_order import PromptOrder
from headstart.scheduler.step import SequencePlan, StepPlan
from headstart.types import Batch, Engine


def build(plan: StepPlan, engine: Engine, order: PromptOrder) -> None:
    """Fill the batch from the current plan, without sequences that have left."""
    batch = plan.batch
    batch.clear()
    seq_ids: list[int] = []
    positions: list[int] = []
    tokens: list[int] = []
    again: list[int] = []  # rows without outputs
    for answer in plan.answers:
        cells = answer.sequence.cells
        if cells is None:
            answer.num_rows = 0
            continue
        drafted = answer.draft[: answer.num_verified]
        answer.seq_id, answer.start = seq_id, start = cells.seq_id, cells.length
        answer.num_outputs = 1 + len(drafted)
        answer.num_rows = rows = answer.num_outputs + (num_again := answer.sequence.num_again)
        if num_again:
            again += range(len(tokens), len(tokens) + num_again)
        seq_ids += [seq_id] * rows
        positions += range(start, start + rows)
        tokens += cells.tokens[-1 - num_again :]
        tokens += drafted
    batch.extend(seq_ids, positions, tokens)
    if again:
        batch.wants_logits[again] = 0
        batch.num_outputs -= len(again)
    if plan.prompts:
        _add_prompts(plan, engine, order)
    if plan.num_padding:
        _pad(plan, engine)
    plan.num_rows = batch.num_rows


def prompt_rows(num_others: int, wanted: int, tile: int) -> int:
    """Prompt rows beside `num_others` other rows: near `wanted`, so that the step has whole tiles.

    The last tile of a step takes as long with one row as with all.
    """
    if wanted < tile:
        return wanted
    tiles = round((num_others + wanted) / tile)
    return max(tiles, num_others // tile + 1) * tile - num_others


def _add_prompts(plan: StepPlan, engine: Engine, order: PromptOrder) -> None:
    """Add chunks of prompts, about `max_prompt_rows` together."""
    batch, tile = plan.batch, engine.attention_tile
    reading, followers = list[SequencePlan](), list[SequencePlan]()
    for prompt in plan.prompts:
        prompt.num_rows = 0
        if prompt.sequence.cells is not None:
            (followers if prompt.sequence.leader else reading).append(prompt)
    if not reading:
        return
    most = engine.max_batch_tokens - batch.num_rows
    num_rows = min(most, prompt_rows(batch.num_rows, plan.max_prompt_rows, tile))
    shares = order.share(
        [prompt.sequence for prompt in reading],
        num_rows,
        [prompt.sequence for prompt in followers],
        plan.max_scored,
    )
    # rows that libllama computes at once by default
    room = min(engine.max_batch_tokens, 512) - batch.num_rows - sum(shares)
    # outputs for scores; each prompt may need that of its last row
    num_free = engine.max_outputs - batch.num_outputs - sum(share > 0 for share in shares)
    num_free = min(num_free, plan.max_scored)
    for prompt, rows in zip(reading, shares, strict=True):
        if not rows:
            continue
        sequence = prompt.sequence
        num_pending, start = sequence.num_pending, sequence.num_decoded
        # a remainder below a tile would still cost a whole tile in the next step
        if 0 < (rest := num_pending - rows) < min(tile, room + 1):
            rows += rest
            room -= rest
        if sequence.pauses:
            rows = min(rows, sequence.pauses[0] - start)
        rows, batch.media = sequence.rows_alike(rows), sequence.pending_media
        if start < sequence.num_as_prompt:  # not an answer that is decoded again
            batch.prompts.add(sequence.seq_id)
            if engine.has_prompt_widths:
                rows = min(rows, sequence.num_as_prompt - start)
        num_outputs = 0
        if sequence.is_scored:
            num_outputs = rows = min(rows, 1 + max(0, num_free))
            num_free -= rows - 1
        if rows == num_pending:
            num_outputs = max(1, num_outputs)
        tokens = sequence.tokens[start : start + rows]
        prompt.seq_id, prompt.start = sequence.seq_id, start
        prompt.num_rows, prompt.num_outputs = rows, num_outputs
        batch.add(prompt.seq_id, start, tokens, num_outputs)


def _pad(plan: StepPlan, engine: Engine) -> None:
    """Add rows that make the decode faster: of a spare sequence, without outputs. They
    leave the cache after the decode.
    """
    batch, spare = plan.batch, engine.padding_sequence
    if spare is None or not batch.num_rows:
        plan.num_padding = 0
    else:  # tokens of the batch, so that a mixture of experts reads no other experts for them
        tokens = np.resize(batch.tokens[: batch.num_rows], plan.num_padding)
        batch.add(spare, 0, tokens.tolist(), 0)


def mixes_states(batch: Batch, engine: Engine) -> bool:
    """Whether a failed decode may leave wrong recurrent states: with several sequences libllama
    first records that it moves others, then moves them.
    """
    is_recurrent = engine.cache_kind.is_recurrent
    return is_recurrent and len(set(batch.seq_ids[: batch.num_rows].tolist())) > 1
