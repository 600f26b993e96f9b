"""A batch that takes several decodes: which rows go together, and what they give."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.types import Batch, Logits

Run = tuple[int, int, int]
"""Adjacent rows of one sequence: where they start and end, and the index of the first output."""


def runs_of(batch: Batch) -> list[Run]:
    """The runs of a batch, in its order."""
    ids = batch.seq_ids[: batch.num_rows]
    edges = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), batch.num_rows]
    outputs = np.concatenate(([0], np.cumsum(batch.wants_logits[: batch.num_rows]))).tolist()
    return [(start, end, outputs[start]) for start, end in pairwise(edges) if end > start]


class Group(NamedTuple):
    """Runs that are decoded together, each padded to `width` rows at least."""

    runs: list[Run]
    width: int


def invariant_groups(runs: list[Run], max_rows: int) -> list[Group]:
    """Runs of 32 rows or fewer padded to one width, each longer one (a prompt's) alone.

    Every width is at least two: one-row decodes take other kernels than all others on x86-64.
    """
    short = sorted((r for r in runs if r[1] - r[0] <= 32), key=lambda r: r[0])
    groups = [Group([r], r[1] - r[0]) for r in runs if r[1] - r[0] > 32]
    width = max(2, max((r[1] - r[0] for r in short), default=0))
    per_group = max(1, max_rows // width)
    groups += [Group(short[i : i + per_group], width) for i in range(0, len(short), per_group)]
    return groups


class GroupedBatch:
    """A batch on its way through several decodes."""

    def __init__(self, batch: Batch, staging: Batch, num_groups: int, vocab_size: int) -> None:
        """`staging`: what is decoded, a group at a time."""
        self.staging = staging
        self.states: dict[int, NDArray[np.float32]] = {}  # by layer, of the rows decoded so far
        self.group = Group([], 0)  # in the staging batch
        self.batch = batch
        self._outputs = slice(None)  # of the staging batch that were asked for
        # the logits of a single group are in the order of the batch: no copy
        self._is_single = num_groups == 1
        self.logits: Logits = np.empty(
            (0 if self._is_single else batch.num_outputs, vocab_size), np.float32
        )

    def stage(self, group: Group, min_outputs: int) -> None:
        """Fill the staging batch with padded runs, and with `min_outputs` if it has any output."""
        batch, staging = self.batch, self.staging
        staging.clear()
        for start, end, _ in group.runs:
            first = staging.num_rows
            padding = [int(batch.tokens[end - 1])] * (group.width - (end - start))
            tokens = [*batch.tokens[start:end].tolist(), *padding]
            staging.add(int(batch.seq_ids[start]), int(batch.positions[start]), tokens, 0)
            staging.wants_logits[first : first + end - start] = batch.wants_logits[start:end]
            staging.num_outputs += int(batch.wants_logits[start:end].sum())
        self.group, self._outputs = group, slice(None)
        if 0 < staging.num_outputs < min_outputs:
            self._add_output()

    def _add_output(self) -> None:
        """Give a row beside the only output one, too."""
        staging = self.staging
        row = int(staging.wants_logits[: staging.num_rows].argmax())
        other = row + 1 if row + 1 < staging.num_rows else row - 1
        staging.wants_logits[other], staging.num_outputs = 1, 2
        self._outputs = slice(1, 2) if other < row else slice(0, 1)

    def collect(self, logits: Logits, states: dict[int, NDArray[np.float32]]) -> None:
        """Take over what the decode of the staging batch gave."""
        logits, offset, at = logits[self._outputs], 0, 0
        for start, end, first in self.group.runs:
            for layer, values in states.items():
                if layer not in self.states:
                    shape = (self.batch.num_rows, values.shape[1])
                    self.states[layer] = np.empty(shape, np.float32)
                self.states[layer][start:end] = values[at : at + end - start]
            at += max(self.group.width, end - start)
            wanted = int(self.batch.wants_logits[start:end].sum())
            if not self._is_single:
                self.logits[first : first + wanted] = logits[offset : offset + wanted]
            offset += wanted
        if self._is_single:
            self.logits = logits
