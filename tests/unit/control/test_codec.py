"""What is saved comes back as it was, and nothing damaged does."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from headstart.control.codec import (
    Check,
    Checks,
    count,
    encode,
    maybe,
    number,
    saved,
    table,
    values,
)


class Pair:
    SAVED: ClassVar[Checks] = {"left": number(0.0, 10.0), "_right": count}

    def __init__(self) -> None:
        self.left, self._right, self.not_saved = 1.0, 2, 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (number(0.0, 1.0), 0.25),
        (count, 7),
        (bool, True),
        (maybe(number()), None),
        (maybe(number()), 2.0),
        (values(2, count), [1, 2]),
        (table(int, number()), {3: 4.0}),
        (table(str, saved(Pair)), {"one": Pair()}),
    ],
)
def test_a_value_comes_back(check: Check[Any], value: Any) -> None:
    assert check(encode(value)) == value


@pytest.mark.parametrize(
    ("check", "state"),
    [
        (number(0.0, 1.0), 1.5),
        (number(), float("inf")),
        (number(), 10**400),
        (number(), "many"),
        (count, -1),
        (values(2, count), [1]),
        (values(1, count), None),
        (table(int, number()), {"x": 1.0}),
        (table(int, number()), [1.0]),
        (saved(Pair), {"left": 1.0}),
        (saved(Pair), {"left": 11.0, "right": 1}),
    ],
)
def test_what_is_damaged_is_refused(check: Check[Any], state: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        check(state)


def test_an_object_keeps_the_fields_that_are_named() -> None:
    pair = Pair()
    pair.left, pair._right, pair.not_saved = 9.0, 5, 6
    state = encode(pair)
    assert state == {"left": 9.0, "right": 5}
    again = saved(Pair)(state)
    assert (again.left, again._right, again.not_saved) == (9.0, 5, 3)


def test_fields_that_contradict_each_other_are_refused() -> None:
    def consistent(pair: Pair) -> None:
        if pair._right > pair.left:
            raise ValueError("right above left")

    with pytest.raises(ValueError, match="above"):
        saved(Pair, consistent)({"left": 1.0, "right": 2})
