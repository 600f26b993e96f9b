"""A batch that takes several decodes: how its rows are grouped, and their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.types import Batch, CacheKind, Logits
from headstart.types.widths import MOST_SHORT, Widths

Run = tuple[int, int, int]
"""Adjacent rows of one sequence: where they start and end, and the index of the first output."""


def runs_of(batch: Batch) -> list[Run]:
    """The runs of a batch, in its order."""
    ids = batch.seq_ids[: batch.num_rows]
    edges = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), batch.num_rows]
    outputs = np.concatenate(([0], np.cumsum(batch.wants_logits[: batch.num_rows]))).tolist()
    return [(start, end, outputs[start]) for start, end in pairwise(edges) if end > start]


class Group(NamedTuple):
    """Runs that are decoded together, each padded to at least `width` rows."""

    runs: list[Run]
    width: int
    widths: Widths = Widths()  # of their decode


def exact_groups(
    batch: Batch,
    runs: Sequence[Run],
    both: tuple[Widths, Widths],
    kind: CacheKind,
    costs: Mapping[int, float] | None,
) -> list[Group]:
    """Groups whose number of rows is one of the widths, of answers or of prompts, in decoding
    order.

    Each sequence has its own cache; libllama computes together equally many rows of sequences with
    consecutive ids. Padding can only be rolled back until the next decode, and without snapshots
    not at all: such sequences are decoded one by one, unpadded.

    costs: time of a decode by width, 1 if unknown; None if a row depends on other sequences
    beside it.
    """
    ids, short, groups = batch.seq_ids, list[Run](), list[Group]()
    widths, of_prompts = both
    if kind is not CacheKind.CUT:
        costs = None
    for run in runs:
        own = of_prompts if int(ids[run[0]]) in batch.prompts else widths
        # longer runs are prompts, decoded separately
        if own is widths and run[1] - run[0] <= min(MOST_SHORT, widths.most):
            short.append(run)
        else:
            groups += [
                Group([piece], own.fit(piece[1] - piece[0]), own)
                for piece in _cut(batch, run, own, kind)
            ]
    neighbours = list[Run]()
    for run in sorted(short, key=lambda run: int(ids[run[0]])):
        if neighbours and int(ids[run[0]]) != int(ids[neighbours[-1][0]]) + 1:
            groups += divide(neighbours, widths, costs)
            neighbours = []
        neighbours.append(run)
    return groups + divide(neighbours, widths, costs)


def divide(runs: Sequence[Run], widths: Widths, costs: Mapping[int, float] | None) -> list[Group]:
    """Divide runs of sequences with consecutive ids into decodes that take the least time together:
    all rows of a short one are padded to the longest draft beside it. O(n^2) in sequences.
    """
    best: list[tuple[float, list[Group]]] = [(0.0, [])]  # by number of runs
    for end in range(1, len(runs) + 1):
        options = []
        for start in range(end - 1, -1, -1):
            part = runs[start:end]
            width = _width(part, widths)
            if len(part) > 1 and (costs is None or not width):
                break
            time, groups = best[start]
            time += costs.get(len(part) * width, 1.0) if costs else 1.0
            options.append((time, [*groups, Group(list(part), width, widths)]))
        best.append(min(options, key=lambda option: option[0]))
    return best[-1][1]


def _cut(batch: Batch, run: Run, widths: Widths, kind: CacheKind) -> Iterator[Run]:
    """Split a prompt into pieces of similar size; unpadded if a state would keep padding."""
    at, end, first = run
    most = min(widths.most, batch.capacity)
    size = -(-(end - at) // -(-(end - at) // most))
    while at < end:
        left = min(size, end - at) if kind is CacheKind.CUT else end - at
        num = widths.fit(left) if kind is CacheKind.CUT else widths.fill(min(left, most))
        stop = min(at + num, at + most, end)
        yield at, stop, first
        first += int(batch.wants_logits[at:stop].sum())
        at = stop


def _width(runs: Sequence[Run], widths: Widths) -> int:
    """Rows per run so that the total is one of the widths; 0: there is none."""
    width = max(end - start for start, end, _ in runs)
    while (total := len(runs) * width) <= widths.most:
        if total == widths.fit(total):
            return width
        width += 1
    return 0


class GroupedBatch:
    """A batch being decoded in several groups."""

    def __init__(
        self, batch: Batch, staging: Batch, groups: Sequence[Group], vocab_size: int
    ) -> None:
        """`staging`: the batch to decode, one group at a time."""
        self.staging = staging
        self.states: dict[int, NDArray[np.float32]] = {}  # by layer, of the rows decoded so far
        self.group = Group([], 0)  # the group in the staging batch
        self.batch = batch
        self._outputs: list[int] | None = None  # outputs of the staging batch that were requested
        # the logits of a single group are usually in the batch's order: no copy
        self._is_single = len(groups) == 1 and groups[0].runs == sorted(groups[0].runs)
        self.logits: Logits = np.empty(
            (0 if self._is_single else batch.num_outputs, vocab_size), np.float32
        )

    def stage(self, group: Group) -> None:
        """Fill the staging batch with padded runs; if any row has outputs, as many rows as the next
        width have some.
        """
        batch, staging, widths = self.batch, self.staging, group.widths
        staging.clear()
        for start, end, _ in group.runs:
            first = staging.num_rows
            padding = [int(batch.tokens[end - 1])] * (group.width - (end - start))
            tokens = [*batch.tokens[start:end].tolist(), *padding]
            staging.add(int(batch.seq_ids[start]), int(batch.positions[start]), tokens, 0)
            staging.wants_logits[first : first + end - start] = batch.wants_logits[start:end]
            staging.num_outputs += int(batch.wants_logits[start:end].sum())
        self.group, self._outputs = group, None
        if staging.num_outputs and (num := widths.fit(staging.num_outputs) - staging.num_outputs):
            self._add_outputs(num)

    def _add_outputs(self, num: int) -> None:
        """Request outputs for `num` more rows, the last ones."""
        staging = self.staging
        wants = staging.wants_logits[: staging.num_rows]
        asked = np.flatnonzero(wants)
        wants[np.flatnonzero(wants == 0)[-num:]] = 1
        staging.num_outputs += num
        ranks = np.cumsum(wants) - 1
        self._outputs = ranks[asked].tolist()

    def collect(self, logits: Logits, states: dict[int, NDArray[np.float32]]) -> None:
        """Copy the results of decoding the staging batch."""
        if self._outputs is not None:
            logits = logits[self._outputs]
        offset, at = 0, 0
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
