"""The tokens of a request: others read them, only the scheduler changes them.

Speculators are shown this very list at every step, because a copy would take O(context). One that
sorted it or appended to it would change the text, so the methods that change a list raise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn


class OwnedTokens(list[int]):
    """A list of tokens that is changed with `grow` and `drop` only."""

    __slots__ = ()

    def grow(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        list.extend(self, tokens)

    def drop(self, start: int, end: int) -> None:
        """Take out tokens[start:end]."""
        list.__delitem__(self, slice(start, end))

    def __reduce_ex__(self, protocol: object) -> tuple[type[list[int]], tuple[list[int]]]:
        return list, ([*self],)  # a copy is a plain list


def _refuse(self: list[int], *arguments: Any, **named: Any) -> NoReturn:
    raise TypeError(
        "the tokens of a request belong to the scheduler and cannot be changed; change a copy: "
        "list(tokens)"
    )


for _name in (
    *("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
    *("__delitem__", "__iadd__", "__imul__", "__setitem__"),
):
    setattr(OwnedTokens, _name, _refuse)
