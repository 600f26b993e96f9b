"""Which numbers of rows in a decode give the same logits, bit for bit, on this machine.

libllama chooses its kernels by the number of rows. Widths whose kernels add in the same order form
a class: a row has the same logits in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headstart.types.engine import CacheKind

_STEPS = (1, 2, 4, 8)  # kernels take rows in such groups, and what is left with another kernel
_LEAST_USEFUL = 6  # most rows of a class that is worth it: a short draft


class Widths(NamedTuple):
    """Widths of one class: multiples of `step` from `least` to `most`."""

    least: int
    most: int
    step: int

    def fit(self, num_rows: int) -> int:
        """The least of these widths with as many rows; may be more than `most`."""
        num_rows = max(num_rows, self.least)
        return -(-num_rows // self.step) * self.step

    def __str__(self) -> str:
        return f"{self.least} to {self.most}" + f" by {self.step}" * (self.step > 1)


ALL_WIDTHS = Widths(1, 2**30, 1)


@dataclass(frozen=True, slots=True)
class WidthClasses:
    """What a comparison of widths found."""

    classes: tuple[tuple[int, ...], ...]  # the widths that were compared
    mixed: tuple[int, ...]  # widths where a row depends on which rows are beside it
    change: float  # most that a logit differs between two widths
    milliseconds: tuple[tuple[int, float], ...] = ()  # of the fastest decode, by width
    is_alone: bool = False  # rows of another sequence in the decode change a row

    @property
    def is_one(self) -> bool:
        """Whether all widths agree."""
        return len(self.classes) == 1 and not self.mixed and not self.is_alone

    def __str__(self) -> str:
        """As "1 | 2-8 | 9-16"."""
        compared = self._compared()
        names = [_ranges(one, compared) for one in sorted(self.classes)]
        mixed = [f"mixed: {_ranges(self.mixed, compared)}"] if self.mixed else []
        return " | ".join(names + mixed)

    def choose(self, most_padding: int = 2**30) -> Widths | None:
        """The class to decode everything in: that which begins with the fewest rows.

        `most_padding`: rows that can be added to one sequence and taken back.
        """
        compared = self._compared()
        found = [one for members in self.classes for one in _runs(members, compared)]
        useful = [
            one
            for one in found
            if one.most >= _LEAST_USEFUL and max(one.least, one.step) <= 1 + most_padding
        ]
        return min(useful, key=lambda one: (one.least, -one.most, one.step), default=None)

    def cost(self, widths: Widths) -> float:
        """How many times as long a decode of one row takes in these widths."""
        times = dict(self.milliseconds)
        wide = times.get(widths.fit(1))
        return wide / times[1] if wide and times.get(1) else 1.0

    def exact_cost(self, kind: CacheKind = CacheKind.CUT) -> float | None:
        """What --exact adds to a step without drafts, as a share; None: it needs slower kernels."""
        widths = self.choose() if kind is CacheKind.CUT else self.choose(0)
        if widths is None:
            return None
        # these texts are short: in long ones attention may part one row from two
        return max(1.0, self.cost(widths), self.cost(widths._replace(least=2))) - 1.0

    def promise(self, kind: CacheKind = CacheKind.CUT, *, is_exact: bool) -> str:
        """What a server that compared them can say about its texts, and at what price."""
        if is_exact:
            return "texts depend neither on drafts nor on other requests (--exact)"
        price = "needs slower kernels"
        if (cost := self.exact_cost(kind)) is not None:
            price = f"makes a step without drafts take up to {100 * cost:.0f} % longer"
        return f"texts may differ at near ties (rows that agree: {self}); --exact {price}"

    def _compared(self) -> list[int]:
        return sorted((*self.mixed, *(n for one in self.classes for n in one)))


def _runs(members: Sequence[int], compared: Sequence[int]) -> list[Widths]:
    """Of each step the widths that are all members: the longest range, the first of such."""
    found = []
    for step in _STEPS:
        multiples, best, run = [n for n in compared if n % step == 0], list[int](), list[int]()
        for width in multiples:
            run = [*run, width] if width in members else []
            best = run if len(run) > len(best) else best
        if best:
            found.append(Widths(best[0], best[-1], step))
    return found


def _ranges(members: Sequence[int], compared: Sequence[int]) -> str:
    """As "1-3, 8": widths that follow each other in what was compared are one range."""
    ranges, inside = list[list[int]](), False
    for width in compared:
        if width in members:
            if inside:
                ranges[-1][1] = width
            else:
                ranges.append([width, width])
        inside = width in members
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges)
