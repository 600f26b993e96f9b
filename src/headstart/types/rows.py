"""How an engine computes the rows of several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Rows(Enum):
    """How a model computes rows of several sequences in one decode. Each pass takes as long as its
    number of rows says.
    """

    TOGETHER = "together"  # in one pass
    PADDED = "padded"  # in one pass, of each answer as many as of that with the longest draft
    # equally many of each sequence in a pass, and what longer ones have left in further passes;
    # those with drafts come before the others
    EQUAL = "equal"


def passes(lengths: Sequence[int]) -> list[int]:
    """Rows of each pass over sequences with so many rows, with Rows.EQUAL.

    >>> passes([1, 3, 1, 4])
    [4, 4, 1]
    """
    rows, done = list[int](), 0
    for index, length in enumerate(ordered := sorted(lengths)):
        if length > done:
            rows.append((length - done) * (len(ordered) - index))
            done = length
    return rows
