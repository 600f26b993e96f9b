"""Control on a busy machine: measured times jump a hundredfold, and it goes on planning."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.lib.steps import SlotDraft, assign_rows, decode, lengths
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headstart.control import Controller, Step
from headstart.control.cost import REFERENCE_ROWS, CostTable, Sample

ROWS = st.sampled_from([1, 2, 3, 4, 8, 11, 16, 32, 64, 256])
TIMES = st.floats(0.1, 1000.0)  # a hundredth to a hundred times of 10 ms
CONTEXTS = st.sampled_from([0, 500, 16000])
STEPS = st.lists(st.tuples(ROWS, CONTEXTS, TIMES), max_size=60)


def warm_up(times: Sequence[tuple[float, float]]) -> list[Sample]:
    rows = (1, 2, 4, 8, 11, 16, 32, 64)
    return [
        Sample(rows[i % len(rows)], 0, ms, reference) for i, (ms, reference) in enumerate(times)
    ]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(TIMES, TIMES), max_size=24), STEPS)
@example([(2.0, 1.0), (1.0, 2.0), (1.0, 3.0)], [(1, 0, 1.0), (2, 0, 1.0)])
def test_a_machine_whose_times_jump_has_a_cost_for_every_step(
    times: list[tuple[float, float]], steps: list[tuple[int, int, float]]
) -> None:
    controller, table = Controller(), CostTable()
    if times:
        controller.learn_costs(warm_up(times))
        table.calibrate(warm_up(times))
    plan = [SlotDraft([0.9, 0.5, 0.2]), SlotDraft([0.7])]
    for rows, context, milliseconds in steps:
        decode(controller, rows, context, milliseconds)
        table.observe(rows, context, milliseconds)
        step = Step(2, 2, context, can_pad=True)
        first, second = lengths(assign_rows(controller, plan, step))
        assert 0 <= first <= 3
        assert 0 <= second <= 1
        curve = table.curve(80, context)
        assert curve[0] >= 0.0
        assert all(0.0 < ms < math.inf for ms in curve[1:])


def test_a_disturbed_warm_up_does_not_end_the_steps() -> None:
    rows = (1, 2, 4, 8, 11)
    samples = [Sample(n, 0, 3.0 if n == 11 else 10.0 + n, 12.0) for n in rows for _ in range(3)]
    table = CostTable()
    table.calibrate(samples)
    for milliseconds in (12.0, 16.0) * 40:
        table.observe(1, 0, 11.0)
        table.observe(REFERENCE_ROWS, 0, milliseconds)
    eleven = table.milliseconds(11, 0)
    assert 0.0 < eleven < 11.0
