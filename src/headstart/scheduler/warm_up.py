"""Times some decodes while no request runs, so that control need not learn the cost of rows from
the first requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from headstart.control.cost import REFERENCE_ROWS, Sample
from headstart.scheduler.batching import mixes_states
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.sequence import Cells
from headstart.scheduler.widths import LENGTH, WIDE, WidthComparison, change_by_order
from headstart.types import Batch, CacheKind, ContextFullError, Engine, Rows
from headstart.types.errors import EngineError
from headstart.types.widths import WidthClasses

log = logging.getLogger(__name__)

# All widths up to 17, because kernels favour some of them; those that few users need come first.
ROWS = (1, 4, 3, 8, 5, 6, 7, 16, 12, 9, 17, 10, 24, 14, 11, 32, 13, 15)
ROUNDS, MOST_ROUNDS = 3, 12  # fast steps vary more, and are cheap to repeat
MOST_PADDING = 8  # rows beyond the maximum number of outputs: padding has none

Interrupted = Callable[[], bool]  # whether a request has arrived


class WarmUp:
    """Measures for control what steps of different widths cost.

    It gives way to every request and continues later: a server started on demand by its first
    request would never learn otherwise. The slots' contents are left alone.
    """

    def __init__(
        self,
        engine: Engine,
        drafting: Drafting,
        cells: Sequence[Cells],
        clock: Callable[[], float],
        seconds: float,
        compared: Callable[[WidthClasses], object] | None = None,  # receives the classes
    ) -> None:
        self._engine, self._drafting, self._cells, self._clock = engine, drafting, cells, clock
        self._timer = DecodeTimer(engine, clock, seconds)
        self._gave_way = False
        self._tasks: list[Callable[[Interrupted], bool]] = []  # return whether they are done
        if not drafting.controller.cost.is_known(min(8, engine.max_outputs)):
            self._tasks.append(self._time_decodes)
        if compared and engine.max_outputs >= max(WIDE) // 2:  # otherwise no step is that wide
            comparison = WidthComparison(engine, [], clock)
            self._tasks.append(partial(self._compare_widths, compared, comparison))

    @property
    def is_done(self) -> bool:
        return not self._tasks

    def go_on(self, is_interrupted: Interrupted = lambda: False) -> None:
        """Continue the measurements until a request arrives."""
        self._timer.begin(*self._unused())
        try:
            while self._tasks and self._tasks[0](is_interrupted):
                del self._tasks[0]
        except ContextFullError:
            log.warning("too few free cells: the cost of steps is learned from requests")
            self._tasks.clear()
        except EngineError as error:
            log.warning("decodes are no longer timed, because one failed: %s", error)
            self._tasks.clear()
            for cells in self._cells if mixes_states(self._timer.batch, self._engine) else ():
                self._engine.clear(cells.seq_id)
                cells.hold([])
        finally:
            self._timer.clear()

    def _time_decodes(self, is_interrupted: Interrupted) -> bool:
        timer = self._timer
        if not timer.fits(REFERENCE_ROWS):
            return False
        num_known = len(timer.samples)
        timer.go_on(is_interrupted)
        self._time_copies()
        timer.clear()
        if len(timer.samples) > num_known:
            self._drafting.run_guarded(self._drafting.controller.cost.calibrate, timer.samples)
        self._gave_way |= (is_late := is_interrupted())
        if timer.is_done and not self._gave_way:  # else draft models' caches may not be empty
            self._drafting.time_models(self._clock)
        return timer.is_done and not is_late

    def _time_copies(self) -> None:
        """Time the copy of a state before a draft; each sequence's first one also allocates."""
        engine, timer = self._engine, self._timer
        if engine.cache_kind is CacheKind.CHECKPOINT and timer.is_done:
            kept = [seq_id for seq_id in timer.sequences if engine.keep_for_draft(seq_id)]
            if not kept or not timer.fits(len(timer.sequences)):
                return
            timer.decode(len(timer.sequences))  # else the state is the same, and not copied
            started = self._clock()
            if engine.keep_for_draft(kept[-1]):
                milliseconds = 1000.0 * (self._clock() - started)
                self._drafting.run_guarded(self._drafting.controller.learn_copy, milliseconds)

    def _compare_widths(
        self,
        told: Callable[[WidthClasses], object],
        comparison: WidthComparison,
        is_interrupted: Interrupted,
    ) -> bool:
        needed = min(LENGTH + max(WIDE), self._engine.context_size)
        if not self._timer.sequences or self._timer.num_cells < needed:
            return False
        own, spare = self._timer.sequences[0], self._engine.padding_sequence
        try:
            comparison.sequences = [own]
            classes = comparison.run(is_interrupted)
            if classes is None:
                return False
            by_order = 0.0 if spare in (None, own) else change_by_order(self._engine, own, spare)
        except ContextFullError:  # there may be room later
            return False
        told(replace(classes, change=max(classes.change, by_order)))
        return True

    def _unused(self) -> tuple[list[int], int]:
        """Empty sequences, and the number of free cells."""
        engine = self._engine
        sequences = [c.seq_id for c in self._cells if c.user is None and not c.length]
        if not sequences and engine.padding_sequence is not None:
            sequences = [engine.padding_sequence]
        return sequences, engine.num_cells - sum(cells.length for cells in self._cells)


class DecodeTimer:
    """Times decodes of synthetic tokens, of each width in ROWS, one after the other, in several
    rounds.

    A machine may be slow for seconds, so each is compared with decodes of REFERENCE_ROWS around it.
    As in real steps, the rows are spread over all sequences. They stay in the cache until the end,
    so each width is timed at growing contexts, which shows the cost of attention. Also loads the
    weights into memory.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float], seconds: float) -> None:
        """Take at most about `seconds`."""
        self.samples: list[Sample] = []
        self.sequences: Sequence[int] = ()
        self.engine, self._clock, self._seconds = engine, clock, seconds
        self.batch = Batch(engine.max_batch_tokens)
        self._turn, self._elapsed = 0, 0.0  # seconds

    def begin(self, sequences: Sequence[int], num_cells: int) -> None:
        """Use these empty sequences, and so many free cells."""
        self.sequences, self.num_cells = sequences, num_cells
        # a hybrid pads sequences to equal numbers of rows, at most one each
        self._spare = len(sequences) * (self.engine.cache_kind is CacheKind.ROLLBACK)
        self.clear()

    @property
    def is_done(self) -> bool:
        is_enough = self._turn >= ROUNDS * len(ROWS) and self._elapsed > 0.1 * self._seconds
        return is_enough or self._turn >= MOST_ROUNDS * len(ROWS) or self._elapsed > self._seconds

    def go_on(self, is_interrupted: Interrupted = lambda: False) -> None:
        """Time decodes until all are timed or a request arrives."""
        started, before = self._clock(), self._elapsed
        self.decode(REFERENCE_ROWS)
        decodes: list[tuple[int, int, float]] = []  # rows, context, milliseconds
        references = [self.decode(REFERENCE_ROWS)[1]]
        while not self.is_done:
            rows = ROWS[self._turn % len(ROWS)]
            self._turn += 1
            if self.fits(rows):
                context, milliseconds = self.decode(rows)
                decodes.append((self.num_computed(rows), context, milliseconds))
                # the next decode uses the same references
                is_second = len(decodes) % 2 == 0
                references.append(self.decode(REFERENCE_ROWS)[1] if is_second else references[-1])
            self._elapsed = before + self._clock() - started
            if is_interrupted():
                break
        self.samples += [
            Sample(*decode, median(references[max(0, i - 1) : i + 3]))
            for i, decode in enumerate(decodes)
        ]

    def fits(self, rows: int) -> bool:
        """Whether `rows` rows can be decoded twice, and whether a step can have that many."""
        engine = self.engine
        most = engine.max_outputs + MOST_PADDING * (engine.padding_sequence is not None)
        return rows <= min(most, engine.max_batch_tokens) and 2 * (rows + self._spare) <= min(
            self.num_cells, engine.context_size * len(self._lengths)
        )

    def num_computed(self, rows: int) -> int:
        """Rows that the target computes: in a hybrid equally many for each sequence used."""
        shares = [share for share in self._deal(rows) if share]
        return len(shares) * max(shares) if self._spare else rows

    def clear(self) -> None:
        for seq_id in self.sequences:
            self.engine.clear(seq_id)
        self._lengths = [0] * len(self.sequences)

    def decode(self, rows: int) -> tuple[int, float]:
        """Decode `rows` rows, in an emptied cache if they do not fit otherwise; returns the mean
        context of a row, and the milliseconds.
        """
        if not self._has_room(rows):
            self.clear()
        shares = self._deal(rows)
        attended = sum(n * length for n, length in zip(shares, self._lengths, strict=True))
        left = min(rows, self.engine.max_outputs)
        started = self._clock()
        self.batch.clear()
        for index, count in enumerate(shares):
            if count:
                start = self._lengths[index]
                first = start + index * self.engine.context_size
                # a prime: neighbours differ, so experts do too
                tokens = [(first + i) * 7919 % self.engine.vocab_size for i in range(count)]
                self.batch.add(self.sequences[index], start, tokens, min(left, count))
                self._lengths[index] += count
                left -= min(left, count)
        self.engine.decode(self.batch)
        return attended // rows, 1000.0 * (self._clock() - started)

    def _deal(self, rows: int) -> list[int]:
        """Split rows over the sequences, equally if others would take a further pass."""
        num_sequences = len(self._lengths)
        if self.engine.rows is Rows.EQUAL:
            num = max(n for n in range(1, num_sequences + 1) if not rows % n)
            return [rows // num] * num + [0] * (num_sequences - num)
        return [rows // num_sequences + (i < rows % num_sequences) for i in range(num_sequences)]

    def _has_room(self, rows: int) -> bool:
        engine = self.engine
        longest = max(a + b for a, b in zip(self._lengths, self._deal(rows), strict=True))
        num_cells = sum(self._lengths) + rows + 2 * self._spare
        return longest <= engine.context_size and num_cells <= self.num_cells
