"""What control saves and loads, field by field: each class says once which of its fields are kept
and within which limits, and both ways follow from that.

    COST = Fields(DraftCost, round_ms=Table(int, Number(1e-6, 1e6)), catch_up_ms=Maybe(Number()))
    COST.encode(cost)          plain values for JSON
    COST.decode(state)         a new object; fields that are not named are as its class makes them

A file may be damaged or edited, and its numbers reach arithmetic that trusts them: everything is
checked while it is read, before anything is changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", str, int)

MOST = 1e9
ROUNDING = 1e-6  # that sums of fading counts may be apart


class Codec(ABC, Generic[T]):
    """One kind of value, to plain values for JSON and back."""

    @abstractmethod
    def encode(self, value: T) -> Any:
        """The value as JSON holds it."""

    @abstractmethod
    def decode(self, state: Any) -> T:
        """The value.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: damaged.
        """


class Number(Codec[float]):
    """A finite number; one beyond the limits is saved as the limit, and refused when read."""

    def __init__(self, least: float = -MOST, most: float = MOST) -> None:
        self._least, self._most = least, most

    def encode(self, value: float) -> float:
        return max(self._least, min(self._most, value))

    def decode(self, state: Any) -> float:
        try:
            number = float(state)
        except OverflowError as error:
            raise ValueError("a number is too large") from error
        if not isfinite(number) or not self._least <= number <= self._most:
            raise ValueError(f"expected a number from {self._least:g} to {self._most:g}")
        return number


class Count(Codec[int]):
    """A whole number, not below 0."""

    def encode(self, value: int) -> int:
        return min(int(MOST), value)

    def decode(self, state: Any) -> int:
        return int(Number(0.0).decode(state))


class YesNo(Codec[bool]):
    """Yes or no."""

    def encode(self, value: bool) -> bool:
        return value

    def decode(self, state: Any) -> bool:
        return state is True


class Maybe(Codec["T | None"], Generic[T]):
    """A value that may not be known yet."""

    def __init__(self, of: Codec[T]) -> None:
        self._of = of

    def encode(self, value: T | None) -> Any:
        return None if value is None else self._of.encode(value)

    def decode(self, state: Any) -> T | None:
        return None if state is None else self._of.decode(state)


class Values(Codec["list[T]"], Generic[T]):
    """So many values of one kind."""

    def __init__(self, length: int, of: Codec[T]) -> None:
        self._length, self._of = length, of

    def encode(self, value: Sequence[T]) -> list[Any]:
        return [self._of.encode(one) for one in value]

    def decode(self, state: Any) -> list[T]:
        if len(state) != self._length:
            raise ValueError(f"expected {self._length} values, not {len(state)}")
        return [self._of.decode(one) for one in state]


class Table(Codec["dict[K, T]"], Generic[K, T]):
    """Values by a name or a number."""

    def __init__(self, key: Callable[[Any], K], of: Codec[T]) -> None:
        self._key: Callable[[Any], K] = key
        self._of = of

    def encode(self, value: dict[K, T]) -> dict[str, Any]:
        return {str(key): self._of.encode(one) for key, one in value.items()}

    def decode(self, state: Any) -> dict[K, T]:
        return {self._key(key): self._of.decode(one) for key, one in state.items()}


class Fields(Codec[T]):
    """An object, of which these fields are kept. A leading underscore is not written."""

    def __init__(
        self,
        make: Callable[[], T],
        check: Callable[[T], None] = lambda _: None,
        **fields: Codec[Any],
    ) -> None:
        """`check` raises ValueError if the fields contradict each other."""
        self._make, self._check, self._fields = make, check, fields

    def encode(self, value: T) -> dict[str, Any]:
        return {
            name.lstrip("_"): codec.encode(getattr(value, name))
            for name, codec in self._fields.items()
        }

    def decode(self, state: Any) -> T:
        value = self._make()
        for name, codec in self._fields.items():
            setattr(value, name, codec.decode(state[name.lstrip("_")]))
        self._check(value)
        return value


def check_parts(wholes: Sequence[float], parts: Sequence[float], what: str) -> None:
    """Raises ValueError if a part is more than its whole."""
    if any(part > whole + ROUNDING for part, whole in zip(parts, wholes, strict=True)):
        raise ValueError(f"more {what}")
