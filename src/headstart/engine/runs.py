"""Adjacent rows of one sequence in a batch, and which of them are decoded together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from headstart.types import Batch

Run = tuple[int, int, int]
"""Adjacent rows of one sequence: where they start and end, and the index of the first output."""


def runs_of(batch: Batch) -> list[Run]:
    """The runs of a batch, in its order."""
    ids = batch.seq_ids[: batch.num_rows]
    edges = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), batch.num_rows]
    outputs = np.concatenate(([0], np.cumsum(batch.wants_logits[: batch.num_rows]))).tolist()
    return [(start, end, outputs[start]) for start, end in pairwise(edges) if end > start]


def groups_of(runs: list[Run], max_rows: int) -> list[list[Run]]:
    """Runs to decode together: the short ones padded to one width, each long one alone."""
    short = sorted((r for r in runs if r[1] - r[0] <= 32), key=lambda r: r[0])
    groups = [[r] for r in runs if r[1] - r[0] > 32]
    width = max(2, max((r[1] - r[0] for r in short), default=0))
    per_group = max(1, max_rows // width)
    groups += [short[i : i + per_group] for i in range(0, len(short), per_group)]
    return groups


__all__ = ["Run", "groups_of", "runs_of"]
