"""What is saved comes back as it was."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import ClassVar

import pytest

from headstart.control.state import encode, restore


class Pair:
    SAVED: ClassVar = ("left", "_right")

    def __init__(self) -> None:
        self.left, self._right, self.not_saved = 1.0, [2, 3], 3


class Pairs:
    SAVED: ClassVar = ("one", "by_name", "by_number")

    def __init__(self) -> None:
        self.one, self.by_number = Pair(), dict[int, float]()
        self.by_name: defaultdict[str, Pair] = defaultdict(Pair)


def test_an_object_keeps_the_fields_that_are_named() -> None:
    pairs, again = Pairs(), Pairs()
    pairs.one.left, pairs.one.not_saved = 0.1, 7
    pairs.by_name["a"]._right = [5]
    pairs.by_number[2] = 0.5
    restore(again, json.loads(json.dumps(encode(pairs))))
    assert (again.one.left, again.one.not_saved, again.by_number) == (0.1, 3, {2: 0.5})
    assert {name: pair._right for name, pair in again.by_name.items()} == {"a": [5]}


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(KeyError, match="right"):
        restore(Pair(), {"left": 1.0})
