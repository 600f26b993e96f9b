"""Checkpoints: the right one is found, bounds hold, shared ones count once."""

from __future__ import annotations

import pytest

from headstart.structures.checkpoints import Checkpoint, Checkpoints, pack, unpack


def made(length: int, size: int = 10) -> Checkpoint:
    return Checkpoint(length, bytes(size))


def filled(lengths: list[int], per_sequence: int = 8, max_bytes: int = 1000) -> Checkpoints:
    checkpoints = Checkpoints(per_sequence, max_bytes)
    for length in lengths:
        checkpoints.add(0, made(length))
    return checkpoints


def lengths_of(checkpoints: Checkpoints, seq_id: int = 0) -> list[int]:
    return [c.length for c in checkpoints.of(seq_id)]


def test_the_longest_that_fits_is_found() -> None:
    checkpoints = filled([30, 10, 20])
    best = checkpoints.best(0, 29)
    assert best is not None
    assert best.length == 20
    assert checkpoints.best(0, 9) is None
    assert checkpoints.best(1, 100) is None


def test_a_cut_sequence_loses_the_longer_ones_and_its_copies_keep_theirs() -> None:
    checkpoints = filled([10, 20, 30])
    checkpoints.share(0, 1, 25)
    checkpoints.cut(0, 15)
    assert lengths_of(checkpoints) == [10]
    assert lengths_of(checkpoints, 1) == [10, 20]


def test_what_is_shared_counts_once() -> None:
    checkpoints = filled([10, 20])
    checkpoints.share(0, 1, 20)
    assert checkpoints.num_bytes == 20


def test_too_many_lose_the_one_that_saves_fewest_tokens_but_never_the_newest() -> None:
    assert lengths_of(filled([100, 200, 205, 300], per_sequence=3)) == [100, 200, 300]
    assert lengths_of(filled([100, 200, 300, 301], per_sequence=3)) == [200, 300, 301]


def test_bytes_of_all_sequences_are_bounded() -> None:
    checkpoints = Checkpoints(8, 55)
    for length in range(1, 40):
        checkpoints.add(length % 4, made(10 * length))
        assert checkpoints.num_bytes <= 55
        assert checkpoints.has(length % 4, 10 * length)
    checkpoints.add(0, made(1000, size=56))
    assert not checkpoints.has(0, 1000)


def test_none_are_kept_where_none_are_wanted() -> None:
    assert lengths_of(filled([10], per_sequence=0)) == []


def test_packed_sequences_come_back_and_other_bytes_do_not() -> None:
    packed = pack(b"state", [Checkpoint(3, b"abc"), Checkpoint(9, b"")])
    parts = unpack(packed)
    assert parts is not None
    assert bytes(parts[0]) == b"state"
    assert [(c.length, bytes(c.data)) for c in parts[1]] == [(3, b"abc"), (9, b"")]


@pytest.mark.parametrize("cut", [0, 5, 24, 25, 40, -1])
def test_damaged_bytes_are_refused(cut: int) -> None:
    packed = pack(b"state", [Checkpoint(3, b"abc")])
    assert unpack(packed[:cut]) is None
    assert unpack(packed + b"x") is None
    assert unpack(bytes(len(packed))) is None
