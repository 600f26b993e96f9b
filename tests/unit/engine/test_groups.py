"""In exact mode a step is divided into the decodes that take the least time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.engine.groups import Group, exact_groups, runs_of
from headstart.types import Batch, CacheKind
from headstart.types.widths import Widths

WIDTHS = Widths(tuple(range(1, 65)))
LENGTHS = st.lists(st.integers(1, 16), min_size=1, max_size=7)


def divide(
    lengths: Sequence[int],
    costs: dict[int, float] | None,
    widths: Widths = WIDTHS,
    ids: Sequence[int] = range(8),
) -> list[Group]:
    """The decodes of answers with so many rows each."""
    batch = Batch(256)
    for seq_id, length in zip(ids, lengths, strict=False):
        batch.add(seq_id, 0, [1] * length, length)
    return exact_groups(batch, runs_of(batch), (widths, widths), CacheKind.CUT, costs)


def rows(groups: Sequence[Group]) -> list[int]:
    return [len(group.runs) * group.width for group in groups]


def ways(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows of the decodes for each way to divide the lengths."""
    if not lengths:
        yield []
    for num in range(1, len(lengths) + 1):
        first = num * max(lengths[:num])
        for rest in ways(lengths[num:]) if first <= 64 else ():
            yield [first, *rest]


@given(LENGTHS, st.floats(0.0, 30.0))
def test_no_other_way_takes_less_time(lengths: list[int], fixed: float) -> None:
    costs = {n: fixed + n for n in WIDTHS.sizes}
    found = divide(lengths, costs)
    assert [end - start for group in found for start, end, _ in group.runs] == lengths
    least = min(sum(costs[n] for n in way) for way in ways(lengths))
    assert sum(costs[n] for n in rows(found)) == pytest.approx(least)


@pytest.mark.parametrize(
    ("fixed", "expected"), [(1.0, [3, 16, 4]), (1000.0, [64])], ids=["processor", "GPU"]
)
def test_a_long_draft_is_decoded_apart_if_padding_the_others_takes_longer(fixed, expected) -> None:
    costs = {n: fixed + n for n in WIDTHS.sizes}
    lengths = [1, 1, 1, 16, 1, 1, 1, 1] if fixed == 1.0 else [1, 1, 16, 1]
    assert rows(divide(lengths, costs)) == expected


def test_sequences_are_decoded_one_by_one_where_they_change_each_other() -> None:
    assert rows(divide([1, 3, 1], None)) == [1, 3, 1]


def test_times_that_are_unknown_give_as_few_decodes_as_possible() -> None:
    assert rows(divide([1, 3, 1], {})) == [9]


def test_only_sequences_with_consecutive_ids_share_a_decode() -> None:
    assert rows(divide([1, 1, 1], {}, ids=(0, 2, 3))) == [1, 2]


def test_a_decode_is_padded_to_a_width_of_its_class() -> None:
    assert rows(divide([1, 1, 1], {}, Widths((8, 12, 16)))) == [12]
