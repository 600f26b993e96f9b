"""How long prompts stop answers, and that whole tiles are read where that is faster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import Model
from tests.unit.scheduler.test_prompt_order import waiting

from headstart.config import SchedulerConfig
from headstart.scheduler.admission import Tenants
from headstart.scheduler.batching import build
from headstart.scheduler.prompt_order import PromptOrder
from headstart.scheduler.sequence import Sequence
from headstart.scheduler.step import StepPlan
from headstart.types import Batch


class Machine:
    """A processor, which computes whole tiles of rows together: milliseconds of a step."""

    def __init__(self, row: float, attention: float, tiled: float, tile: int = 64) -> None:
        """`attention`: of a row to a token; `tiled`: how much faster it is in tiles."""
        self._row, self._attention, self._tiled = row, attention, tiled
        self.engine = Model(context_size=65_536)
        self.engine.max_batch_tokens, self.engine.attention_tile = 2048, tile

    def row(self, context: int) -> float:
        """What a row takes by itself."""
        return self._row + self._attention * context

    def tile(self, context: int) -> float:
        """What a tile of rows takes."""
        return 64 * (self._row + self._attention * context / self._tiled)

    def read(
        self, order: PromptOrder, prompts: list[Sequence], limit: float | None, *, beside: bool
    ) -> tuple[int, float]:
        """A step that reads prompts; its rows and milliseconds."""
        plan = StepPlan(Batch(2048), 0.0, prompts=prompts)
        config, running = SchedulerConfig(prefill_ms=limit), list(prompts)
        if beside:
            (answer,) = waiting(2)
            answer.num_prompt = 1
            assert answer.cells is not None
            answer.cells.length = 1
            running.append(answer)
        plan.max_prompt_rows = order.limit(prompts, running, config, 2048)
        build(plan, self.engine, order)
        rows = plan.batch.num_rows
        spans = list(zip(plan.num_rows, plan.starts, strict=True))
        if rows < 64 or self.engine.attention_tile == 1:
            milliseconds = 5.0 + sum(num * self.row(start) for num, start in spans)
        else:
            context = sum(num * start for num, start in spans) // sum(plan.num_rows)
            milliseconds = 5.0 + -(-rows // 64) * self.tile(context)
        order.count(plan, milliseconds)
        for index, sequence in plan.decoded:
            assert sequence.cells is not None
            sequence.cells.length += plan.num_rows[index]
            if not sequence.num_pending:
                prompts.remove(sequence)
        return sum(plan.num_rows), milliseconds


@settings(max_examples=40)
@given(
    st.sampled_from([1, 64]),
    st.floats(0.2, 5.0),
    st.floats(64, 5000),
    st.floats(1.5, 20),
    st.floats(50, 400),
    st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 20_000)), min_size=1, max_size=3),
)
def test_prompts_stop_answers_no_longer_than_was_asked_for(
    tile: int, row: float, even: float, tiled: float, limit: float, prompts: list[tuple[int, int]]
) -> None:
    """`even`: tokens that a row's attention to them takes as long as the rest of it; of each
    prompt what is to be read, and what is cached.
    """
    machine, order = Machine(row, row / even, tiled, tile), PromptOrder(tile, Tenants({}))
    first = waiting(2048)
    while first:  # nobody waits for it: now it is known what rows take
        machine.read(order, first, limit, beside=False)
    for length, cached in prompts:
        reading = waiting(cached + length)
        assert reading[0].cells is not None
        reading[0].cells.length = cached
        num_over = 0
        while reading:
            rows, milliseconds = machine.read(order, reading, limit, beside=True)
            num_over += rows > 1 and milliseconds > 1.1 * limit
        assert num_over <= 1  # where it stands far behind what was read so far


def test_whole_tiles_are_read_where_they_keep_the_limit() -> None:
    for limit in (None, 150.0):
        machine, order = Machine(1.2, 0.009, 4.0), PromptOrder(64, Tenants({}))
        for _ in range(2):
            reading, known = waiting(4000), 0
            while reading:
                rows, _ = machine.read(order, reading, limit, beside=True)
                assert rows >= 64 or known > 400 or not reading
                assert limit or rows >= 64 or not reading
                known += rows


@pytest.mark.parametrize(
    ("length", "known", "is_padded"),
    [(20, 4000, False), (48, 4000, True), (63, 4000, True), (48, 100, False)],
)
def test_less_than_a_tile_is_padded_to_one_where_that_is_faster(
    length: int, known: int, *, is_padded: bool
) -> None:
    machine, order = Machine(1.2, 0.009, 2.3), PromptOrder(64, Tenants({}))
    reading = waiting(known + length)
    assert reading[0].cells is not None
    reading[0].cells.length = known
    alone, tile = 5.0 + length * machine.row(known), 5.0 + machine.tile(known)
    assert is_padded == (tile < alone)
    _, milliseconds = machine.read(order, reading, None, beside=False)
    assert milliseconds == pytest.approx(tile if is_padded else alone)
