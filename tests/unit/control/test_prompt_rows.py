"""How many prompt rows a step may have: what the time of those who generate allows."""

from __future__ import annotations

from benchmarks.lib.steps import decode

from headstart.control import Controller, Step

STEP = Step(2, 2, 100)


def controller(row_ms: float) -> Controller:
    control = Controller()
    for _ in range(4):
        for rows in (1, 2, 8, 64, 256, 1024):
            decode(control, rows, 0, 5.0 + row_ms * rows)
    return control


def test_a_fast_machine_reads_more_at_once_and_a_slow_one_what_it_must() -> None:
    fast, slow = controller(0.05), controller(5.0)
    assert 512 <= fast.prompt_rows(64, 2048, STEP, 100.0) <= 2048
    assert slow.prompt_rows(64, 2048, STEP, 100.0) == 64


def test_the_step_is_expected_to_keep_its_time() -> None:
    for row_ms in (0.02, 0.1, 0.5, 2.0):
        rows = controller(row_ms).prompt_rows(16, 2048, STEP, 100.0)
        assert rows == 16 or 5.0 + row_ms * rows <= 110.0


def test_bounds_hold_whatever_is_known() -> None:
    assert Controller().prompt_rows(64, 32, STEP, 100.0) == 32
    assert Controller().prompt_rows(64, 2048, STEP, 0.0) == 64
    assert controller(0.001).prompt_rows(64, 100, STEP, 100.0) == 100
