"""Which numbers of rows in a decode give the same logits, bit for bit, on this machine.

libllama chooses its kernels by the number of rows. Widths whose kernels add in the same order form
a class: a row has the same logits in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headstart.types.engine import CacheKind

MOST_SHORT = 16  # rows of a draft or less; up to so many, all widths are compared


class Widths(NamedTuple):
    """Widths of one class, rising; none: all widths are the same."""

    sizes: tuple[int, ...] = ()

    @property
    def most(self) -> int:
        return self.sizes[-1] if self.sizes else 2**30

    def fit(self, num_rows: int) -> int:
        """The least of these widths with as many rows; the rows themselves if there is none."""
        return next((size for size in self.sizes if size >= num_rows), max(1, num_rows))

    @property
    def pads_little(self) -> bool:
        """Whether one row is padded to two at most; if not, weights are rather unpacked."""
        return self.fit(1) <= 2

    def fill(self, num_rows: int) -> int:
        """The most of these widths with so many rows, or else the least."""
        return max((size for size in self.sizes if size <= num_rows), default=self.fit(num_rows))

    def __str__(self) -> str:
        return f"{self.sizes[0]} to {self.most}" if self.sizes else "all"


ALL_WIDTHS = Widths()


@dataclass(frozen=True, slots=True)
class WidthClasses:
    """What a comparison of widths found."""

    classes: tuple[tuple[int, ...], ...]  # the widths that were compared
    mixed: tuple[int, ...]  # widths where a row depends on which rows are beside it
    change: float  # most that a logit differs between two widths
    milliseconds: tuple[tuple[int, float], ...] = ()  # of the fastest decode, by width
    is_alone: bool = False  # rows of another sequence in the decode change a row

    def __str__(self) -> str:
        """As "1 | 2-8 | 9-16"."""
        compared = self._compared()
        names = [_ranges(one, compared) for one in sorted(self.classes)]
        mixed = [f"mixed: {_ranges(self.mixed, compared)}"] if self.mixed else []
        return " | ".join(names + mixed)

    def choose(self, most_padding: int = 2**30) -> Widths | None:
        """The class to decode everything in: that which begins with the fewest rows.

        Only widths that were compared: what lies between may have kernels of its own.

        `most_padding`: rows that can be added to one sequence and taken back.
        """
        found = [_padded(sorted(members), most_padding) for members in self.classes]
        # six rows are worth it, a short draft, in three widths: one has others padded or cut
        useful = [n for n in found if len(n) >= 3 and n[-1] >= 6]
        return Widths(min(useful)) if useful else None

    def cost(self, widths: Widths, num_rows: int = 1) -> float:
        """How many times as long as one row so many take in these widths."""
        times = dict(self.milliseconds)
        wide = times.get(widths.fit(num_rows))
        return wide / times[1] if wide and times.get(1) else 1.0

    def exact_cost(self, kind: CacheKind = CacheKind.CUT) -> float | None:
        """What --exact adds to a step without drafts, as a share; None: it needs slower kernels."""
        widths = self.choose() if kind is CacheKind.CUT else self.choose(0)
        if widths is None or not widths.pads_little:
            return None
        # these texts are short: in long ones attention may part one row from two
        return max(1.0, self.cost(widths), self.cost(widths, 2)) - 1.0

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


def _padded(sizes: Sequence[int], most_padding: int) -> tuple[int, ...]:
    """Those of the widths that can be reached from each number of rows below them."""
    kept: list[int] = []
    for size in sizes:
        last = kept[-1] if kept else 0
        if last < MOST_SHORT and size - last > 1 + most_padding:
            break
        kept.append(size)
    return tuple(kept)


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
