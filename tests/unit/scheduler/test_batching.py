"""How many prompt rows go into a step beside the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headstart.scheduler.batching import prompt_rows


@given(st.integers(1, 300), st.integers(64, 2048))
def test_a_step_that_reads_prompts_is_whole_tiles_of_attention(others: int, wanted: int) -> None:
    rows = prompt_rows(others, wanted, 64)
    assert (others + rows) % 64 == 0
    assert rows >= 1
    assert abs(rows - wanted) <= 32


@given(st.integers(0, 300), st.integers(1, 63))
def test_a_small_chunk_is_kept_as_it_was_wished(others: int, wanted: int) -> None:
    assert prompt_rows(others, wanted, 64) == wanted


@given(st.integers(0, 300), st.integers(1, 2048))
def test_without_tiles_every_chunk_is_kept(others: int, wanted: int) -> None:
    assert prompt_rows(others, wanted, 1) == wanted
