"""A class that cannot be a speculator is refused when it is registered, with what to mend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headstart.app.cli.settings import settings_of
from headstart.speculators import SPECULATORS, Speculator, register
from headstart.types import Draft, DraftRequest
from headstart.types.errors import ConfigError


class Proposing(Speculator):
    """Drafts nothing."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft() for _ in requests]


class Plain:
    """No dataclass."""

    n = 3


@dataclass
class Bare:
    """Without a default."""

    n: int


@dataclass
class Size:
    """As it should be."""

    n: int = 3


@dataclass
class Odd:
    """Of a type that no flag has."""

    n: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({}, "its name is None"),
        ({"name": 3}, "its name is 3"),
        ({"name": "Two Words"}, "small letters"),
        ({"name": "a,b"}, "small letters"),
        ({"name": "none"}, "means something else"),
        ({"name": "grammar"}, "means something else"),
        ({"name": "suffix"}, "is taken by headstart.speculators.suffix"),
        ({"name": "x", "Options": Plain}, "must be a dataclass"),
        ({"name": "x", "Options": Bare}, "option n needs a default"),
        ({"name": "x", "Options": Size}, "constructor must take options"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(attributes: dict[str, Any], says: str) -> None:
    before = dict(SPECULATORS)
    with pytest.raises(ConfigError, match=says):
        register(type("Wrong", (Proposing,), attributes))
    assert before == SPECULATORS


def test_a_class_that_proposes_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"does not define propose\(self, requests\)"):
        register(type("Idle", (Speculator,), {"name": "idle"}))
    with pytest.raises(ConfigError, match="must be a subclass"):
        register(type("Other", (), {"name": "other"}))


def test_an_option_that_no_flag_can_have_is_named() -> None:
    with pytest.raises(ConfigError, match=r"spec_odd_n has the type tuple.* but must be a str"):
        list(settings_of(Odd, prefix="spec_odd_"))
