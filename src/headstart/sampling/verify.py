"""Verification: a draft token is accepted exactly when it is the token the target emits anyway."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.sampler import Sampler


def emit_forced(
    sampler: Sampler,
    logits: NDArray[np.float32],
    draft: Sequence[int],
    position: int,
    num_forced: int,
) -> list[int]:
    """Accept the first `num_forced` draft tokens unseen, then sample one: for measurements, not
    for text.
    """
    token = sampler.sample(logits[num_forced], position + num_forced)
    return [*draft[:num_forced], token]


def emit(
    sampler: Sampler,
    logits: NDArray[np.float32],
    draft: Sequence[int],
    position: int,
    final: Container[int],
    note: Callable[[int, int], None] | None = None,
) -> list[int]:
    """Sample along the draft until it disagrees, ends, or the model ends its turn.

    Args:
        logits: of the last known token and of each draft token, shape (len(draft) + 1, vocab_size).
        position: of the first token to emit.
        final: tokens after which nothing follows.
        note: told (row, token) while the sampler still stands before that token.

    Returns 1 to len(draft) + 1 tokens; all but the last are accepted draft tokens, and the last is
    one too only if it is final.
    """
    emitted: list[int] = []
    for row in range(len(draft) + 1):
        token = sampler.sample(logits[row], position + row)
        emitted.append(token)
        if note is not None:
            note(row, token)
        if sampler.reads_text:
            sampler.read((token,))
        if row == len(draft) or token != draft[row] or token in final:
            break
    return emitted
