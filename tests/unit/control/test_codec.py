"""What is saved comes back as it was, and nothing damaged does."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.control.codec import Codec, Count, Fields, Maybe, Number, Table, Values, YesNo


class Pair:
    def __init__(self) -> None:
        self.left, self._right, self.kept_by_nobody = 1.0, 2, 3


PAIR = Fields(Pair, left=Number(0.0, 10.0), _right=Count())


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (Number(0.0, 1.0), 0.25),
        (Count(), 7),
        (YesNo(), True),
        (Maybe(Number()), None),
        (Maybe(Number()), 2.0),
        (Values(2, Count()), [1, 2]),
        (Table(int, Number()), {3: 4.0}),
    ],
)
def test_a_value_comes_back(codec: Codec[Any], value: Any) -> None:
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("codec", "state"),
    [
        (Number(0.0, 1.0), 1.5),
        (Number(), float("inf")),
        (Number(), 10**400),
        (Number(), "many"),
        (Count(), -1),
        (Values(2, Count()), [1]),
        (Values(1, Count()), None),
        (Table(int, Number()), {"x": 1.0}),
        (Table(int, Number()), [1.0]),
        (PAIR, {"left": 1.0}),
        (PAIR, {"left": 11.0, "right": 1}),
    ],
)
def test_what_is_damaged_is_refused(codec: Codec[Any], state: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        codec.decode(state)


def test_an_object_keeps_the_fields_that_are_named() -> None:
    pair = Pair()
    pair.left, pair._right, pair.kept_by_nobody = 99.0, 5, 6
    state = PAIR.encode(pair)
    assert state == {"left": 10.0, "right": 5}, "beyond the limits: saved as the limit"
    again = PAIR.decode(state)
    assert (again.left, again._right, again.kept_by_nobody) == (10.0, 5, 3)


def test_fields_that_contradict_each_other_are_refused() -> None:
    def check(pair: Pair) -> None:
        if pair._right > pair.left:
            raise ValueError("right above left")

    codec = Fields(Pair, check, left=Number(), _right=Count())
    with pytest.raises(ValueError, match="above"):
        codec.decode({"left": 1.0, "right": 2})
