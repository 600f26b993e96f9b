"""Verification: a draft token is accepted exactly when it is the token the target emits anyway."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.sampler import Sampler, only

Note = Callable[[int, int, NDArray[np.bool_] | None], None]
"""(row, token, mask of the tokens among which it was chosen if these were not all)"""


def emit(
    sampler: Sampler,
    logits: NDArray[np.float32],
    draft: Sequence[int],
    position: int,
    final: Container[int],
    note: Note | None = None,
) -> list[int]:
    """Sample along the draft until a token differs, or the draft or the text ends.

    Args:
        logits: of the last known token and of each draft token, shape (len(draft) + 1, vocab_size).
        position: of the first token to emit.
        final: tokens after which nothing follows.
        note: called for every token before the sampler reads it.

    Returns 1 to len(draft) + 1 tokens; all but the last are accepted draft tokens, and the last is
    one too only if it is final or completes the text.
    """
    emitted: list[int] = []
    legality, thoughts = sampler.legality, sampler.thoughts
    is_free = legality is None and thoughts is None
    for row in range(len(draft) + 1):
        if is_free:
            token, legal = sampler.sample(logits[row], position + row), None
        else:
            token, legal = _choose(sampler, logits[row], position + row)
        emitted.append(token)
        if note is not None:
            note(row, token, legal)
        if sampler.reads_text:
            sampler.read((token,))
        if legality is not None:
            legality.read(token)
        if thoughts is not None:
            thoughts.read(token)
        if row == len(draft) or token != draft[row] or token in final:
            break
        if legality is not None and legality.is_over:
            break
    return emitted


def _choose(
    sampler: Sampler, logits: NDArray[np.float32], position: int
) -> tuple[int, NDArray[np.bool_] | None]:
    """The token, and the mask of legal tokens if it was chosen among them.

    The unconstrained choice stands if it is legal; otherwise the same rule and noise apply to the
    legal tokens.
    """
    if closing := sampler.closing():
        return closing[0], only(closing[0], sampler.vocab_size)
    legality = sampler.legality
    if legality is None:
        return sampler.sample(logits, position), None
    if forced := legality.forced():
        return forced[0], legality.legal_mask()
    token = sampler.sample(logits, position)
    if legality.allows(token):
        return token, None
    legal = legality.legal_mask()
    return sampler.sample(logits, position, legal), legal
