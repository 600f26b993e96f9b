"""What control saves and loads: each class names the fields that are kept, with their limits.

    class DraftCost:
        SAVED: ClassVar[Checks] = {"round_ms": table(int, number(1e-9)), "_age": count}

    encode(cost)                 plain values for JSON; a leading underscore is not written
    saved(DraftCost)(state)      a new object; other fields are as the class makes them

A file may be damaged or edited, and its numbers reach arithmetic that trusts them. So everything is
checked while it is read, before anything is changed: a check returns the value, or raises
ValueError, KeyError, TypeError or AttributeError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, Protocol, TypeVar

T = TypeVar("T")
K = TypeVar("K", str, int)
Check = Callable[[Any], T]
Checks = Mapping[str, Check[Any]]

MOST = 1e9


class Saved(Protocol):
    """A class with fields that are kept."""

    SAVED: ClassVar[Checks]


S = TypeVar("S", bound=Saved)


def encode(value: Any) -> Any:
    """Plain values for JSON of numbers, lists, tables, and objects that name their fields."""
    if isinstance(value, dict):
        return {str(key): encode(one) for key, one in value.items()}
    if isinstance(value, list):
        return [encode(one) for one in value]
    if not hasattr(value, "SAVED"):
        return value
    return {name.lstrip("_"): encode(getattr(value, name)) for name in value.SAVED}


def saved(kind: type[S], consistent: Callable[[S], None] = lambda _: None) -> Check[S]:
    """An object of this class; `consistent` raises ValueError if its fields contradict others."""

    def check(state: Any) -> S:
        value = kind()
        for name, check_field in kind.SAVED.items():
            setattr(value, name, check_field(state[name.lstrip("_")]))
        consistent(value)
        return value

    return check


def number(least: float = -MOST, most: float = MOST) -> Check[float]:
    """A finite number within these limits."""

    def check(state: Any) -> float:
        try:
            value = float(state)
        except OverflowError as error:
            raise ValueError("a number is too large") from error
        if not isfinite(value) or not least <= value <= most:
            raise ValueError(f"expected a number from {least:g} to {most:g}")
        return value

    return check


def count(state: Any) -> int:
    """A whole number, not below 0."""
    return int(number(0.0)(state))


def maybe(of: Check[T]) -> Check[T | None]:
    """A value that may not be known yet."""
    return lambda state: None if state is None else of(state)


def values(length: int, of: Check[T]) -> Check[list[T]]:
    """So many values of one kind."""

    def check(state: Any) -> list[T]:
        if len(state) != length:
            raise ValueError(f"expected {length} values, not {len(state)}")
        return [of(one) for one in state]

    return check


def table(key: Callable[[Any], K], of: Check[T]) -> Check[dict[K, T]]:
    """Values by a name or a number."""
    return lambda state: {key(one): of(value) for one, value in state.items()}


def check_parts(wholes: Sequence[float], parts: Sequence[float], what: str) -> None:
    """Raises ValueError if a part is more than its whole."""
    rounding = 1e-6  # sums of fading counts may be as far apart
    if any(part > whole + rounding for part, whole in zip(parts, wholes, strict=True)):
        raise ValueError(f"more {what}")
