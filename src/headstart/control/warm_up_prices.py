"""What rows cost in texts, relative to the warm-up.

Rows of a warm-up may be dearer or cheaper than rows of a text, which wake the same experts more or
less often. What the widths seen since say of the price of a further row holds for the others:

    price of the rows beyond the first, now = margin * (their price in the warm-up)

The margin is the least-squares fit over the steps since, older ones fading. It is fitted to the
steps and not to the table's cells: a cell seen once since is still the warm-up's for the most part,
and would confirm it.
"""

from __future__ import annotations

from math import exp, log

# Where rows cost little, their price is mostly noise: squared, in single rows.
MARGIN_DOUBT = 0.05
LEAST_MARGIN = 0.3
MARGIN_FADE = 0.98  # a step's share of what is remembered, the next step: some 50 steps


class WarmUpPrices:
    """Shapes of a warm-up by knot (log of a step's time by the level), and what became of them."""

    def __init__(self, shapes: dict[int, float] | None = None) -> None:
        self._shapes = shapes or {}
        self._unseen = set(self._shapes)
        self._products = self._squares = 0.0  # of prices now and in the warm-up

    def is_unseen(self, knot: int) -> bool:
        """Whether this width was timed by the warm-up only."""
        return knot in self._unseen

    def see(self, knot: int) -> None:
        """A step has this width."""
        self._unseen.discard(knot)

    def observe(self, knot: int, shape: float, single: float) -> None:
        """A step of this width had this shape; `single` is that of one row now."""
        if not knot or 0 in self._unseen or not {0, knot} <= self._shapes.keys():
            return
        before = exp(self._shapes[knot]) - exp(self._shapes[0])
        self._products = MARGIN_FADE * self._products + before * (exp(shape) - exp(single))
        self._squares = MARGIN_FADE * self._squares + before * before

    @property
    def margin(self) -> float:
        """What further rows cost now, relative to the warm-up."""
        if 0 not in self._shapes or 0 in self._unseen:
            return 1.0
        doubt = MARGIN_DOUBT * exp(2.0 * self._shapes[0])
        ratio = (self._products + doubt) / (self._squares + doubt)
        return max(LEAST_MARGIN, min(1.0 / LEAST_MARGIN, ratio))

    def shape(self, knot: int, shape: float, single: float, margin: float) -> float:
        """Of a width, `shape` unless it was not seen since."""
        if margin == 1.0 or not knot or knot not in self._unseen:
            return shape
        # A width that took less time than a single row has no price to scale: kernels like it, or
        # something else slowed the single rows. Times the margin it could fall below no time.
        if shape <= single:
            return shape
        return log(exp(single) * (1.0 - margin) + exp(shape) * margin)
