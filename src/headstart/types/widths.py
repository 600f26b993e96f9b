"""Numbers of rows per decode that give the same logits, bit for bit, on this machine.

libllama chooses kernels by the number of rows. Widths whose kernels sum in the same order form a
class: a row has the same logits in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headstart.types.constraint import NO_LIMIT
from headstart.types.engine import CacheKind

LEAST_WIDEST = 6  # a short draft, and so the least that the widest decode of a class may have
MOST_SHORT = 16  # rows of a draft or less; up to this, all widths are compared


class Widths(NamedTuple):
    """Widths of one class, ascending; empty: all widths agree."""

    sizes: tuple[int, ...] = ()
    is_reference: bool = False  # with the CPU's reference kernels

    @property
    def most(self) -> int:
        return self.sizes[-1] if self.sizes else NO_LIMIT

    def fit(self, num_rows: int) -> int:
        """The least of these widths with at least `num_rows` rows, or else `num_rows`."""
        return next((size for size in self.sizes if size >= num_rows), max(1, num_rows))

    @property
    def pads_little(self) -> bool:
        """Whether one row is padded to two at most; if not, weights are rather unpacked."""
        return self.fit(1) <= 2

    def fill(self, num_rows: int) -> int:
        """The largest of these widths with at most `num_rows` rows, or else the smallest."""
        return max((size for size in self.sizes if size <= num_rows), default=self.fit(num_rows))

    def __str__(self) -> str:
        words = f"{self.sizes[0]} to {self.most}" if self.sizes else "all"
        return words + " (reference kernels)" * self.is_reference


@dataclass(frozen=True, slots=True)
class WidthClasses:
    """Result of a comparison of widths."""

    classes: tuple[tuple[int, ...], ...]  # of the widths compared
    mixed: tuple[int, ...]  # widths where a row may depend on the rows beside it
    change: float  # largest difference of a logit between two widths
    milliseconds: tuple[tuple[int, float], ...] = ()  # of the fastest decode, by width
    is_alone: bool = False  # rows of another sequence in the decode change a row
    is_exact: bool = False  # with --exact, only widths of one class are decoded
    has_reference: bool = False  # there are other kernels, those of a CPU

    def __str__(self) -> str:
        """Format like "1 | 2-8 | 9-16"."""
        compared = sorted((*self.mixed, *(n for one in self.classes for n in one)))
        names = [_ranges(one, compared) for one in sorted(self.classes)]
        mixed = [f"mixed: {_ranges(self.mixed, compared)}"] if self.mixed else []
        return " | ".join(names + mixed)

    def choose(self, most_padding: int = NO_LIMIT) -> Widths | None:
        """The class for decodes of answers: of those with room for a long draft, the one that
        begins with the fewest rows; else the one with most room.

        Only compared widths: others may use different kernels. Not by time, nor by the number of
        slots: a server has the same texts each time it is started.

        `most_padding`: rows that can be added to one sequence and rolled back.
        """
        found = [_padded(sorted(members), most_padding) for members in self.classes]
        # at least three widths: otherwise too much padding
        useful = [n for n in found if len(n) >= 3 and n[-1] >= LEAST_WIDEST]
        roomy = [sizes for sizes in useful if sizes[-1] >= MOST_SHORT]
        best = min(roomy) if roomy else max(useful, key=lambda sizes: sizes[-1], default=())
        return Widths(best) if best else None

    def choose_for_prompts(self) -> Widths:
        """The class for prompts: the widest."""
        wide = max(self.classes, key=lambda members: (len(members) >= 3, max(members)), default=())
        return Widths(tuple(sorted(wide)))

    def exact_cost(self, kind: CacheKind) -> float | None:
        """What --exact would add to a step of one request without drafts, as a share; None: not
        known, because it needs slower kernels or is on.
        """
        # windows become caches that can be cut; recurrent states could not take padding back
        widths = self.choose(0) if kind.is_recurrent else self.choose()
        if widths is None or self.is_exact or self.has_reference:
            return None
        times = dict(self.milliseconds)
        return max(0.0, times[widths.fit(1)] / times[1] - 1.0)

    def promise(self, kind: CacheKind) -> str:
        """What a server can promise about its texts after the comparison, and at what price."""
        if self.is_exact:
            return "texts depend neither on drafts nor on other requests (--exact)"
        price = "needs slower kernels, where it is possible"
        if (cost := self.exact_cost(kind)) is not None:
            step = "a step of one request without drafts"
            price = f"makes {step} take {100 * cost:.0f} % longer"
            price += ", and decodes several requests one by one" * kind.is_recurrent
        return f"texts may differ at near ties (rows that agree: {self}); --exact {price}"


def _padded(sizes: Sequence[int], most_padding: int) -> tuple[int, ...]:
    """The widths that can be reached from each smaller number of rows."""
    kept: list[int] = []
    for size in sizes:
        last = kept[-1] if kept else 0
        if last < MOST_SHORT and size - last > 1 + most_padding:
            break
        kept.append(size)
    return tuple(kept)


def _ranges(members: Sequence[int], compared: Sequence[int]) -> str:
    """Format like "1-3, 8": adjacent compared widths form a range."""
    ranges, inside = list[list[int]](), False
    for width in compared:
        if width in members:
            if inside:
                ranges[-1][1] = width
            else:
                ranges.append([width, width])
        inside = width in members
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges)
