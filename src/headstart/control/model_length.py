"""For how many slots a draft model drafts, and how many tokens: the number that is worth most.

All slots draft together, in rounds of one token each. The value of a number of slots and a length
is, in tokens,

    expected accepted tokens - rate * (draft ms(slots, rounds) + ms(base + rows) - ms(base))

`forecast` says what to expect; `rate` is the budget's, margin included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import add
from typing import NamedTuple

from headstart.control.draft_cost import DraftCost
from headstart.control.forecast import LENGTHS, WIDTHS, Forecast
from headstart.control.values import ModelSlot


class Decision(NamedTuple):
    """Slots to draft for (indices), how far, and the index of the confidence limit."""

    slots: Sequence[int] = ()
    length: int = 0
    limit: int = 0
    value: float = 0.0  # expected tokens above the price
    can_skip: bool = False  # the middle of long texts is left out


NO_DECISION = Decision()


class Price(NamedTuple):
    """What drafting costs in one step; `rate` turns milliseconds into tokens."""

    cost: DraftCost
    rate: float
    curve: Sequence[float]  # of the target, by rows
    base: int  # rows without drafts
    num_even: int  # slots for which as many rows are computed as for the longest draft; 0: ragged
    plain: float  # milliseconds of a plain step
    # what each token of a step has to earn for what is read first, by slot
    reading: Sequence[float]


def better(
    best: Decision,
    slots: Sequence[ModelSlot],
    limit: int,
    forecasts: Sequence[Forecast],
    price: Price,
    num_lengths: int,
) -> Decision:
    """The best number of slots and length under one confidence limit, if worth more than `best`."""
    gains = [
        _gains(slot, f, num_lengths, reading)
        for slot, f, reading in zip(slots, forecasts, price.reading, strict=True)
    ]
    cost, plain, curve, base, rate = price.cost, price.plain, price.curve, price.base, price.rate
    net = [max(gain) for gain in gains]
    order = sorted(range(len(slots)), key=lambda i: -net[i]) if len(slots) > 1 else [0]
    last, before = len(curve) - 1, curve[base]
    best_value, count, best_length = best.value, 0, 0
    gained: list[float] = []
    rows: list[float] = []
    idle: list[float] = []
    for n, i in enumerate(order, 1):
        expected = forecasts[i]
        if n == 1:
            gained, rows, idle = gains[i], expected.rows, [1.0 - reach for reach in expected.reach]
        else:
            gained = [a + b for a, b in zip(gained, gains[i], strict=True)]
            join = max if price.num_even else add
            rows = [join(a, b) for a, b in zip(rows, expected.rows, strict=True)]
            idle = [a * (1.0 - b) for a, b in zip(idle, expected.reach, strict=True)]
        draft_ms, round_ms = 0.0, cost.round(n, plain)
        for length, width, tokens, row, is_idle in zip(
            LENGTHS, WIDTHS, gained, rows, idle, strict=False
        ):
            draft_ms += width * (1.0 - is_idle) * round_ms
            reached = base + (price.num_even or 1) * row
            whole = int(reached)
            ms = (
                curve[whole] + (reached - whole) * (curve[whole + 1] - curve[whole])
                if whole < last
                else curve[last]
            )
            value = tokens - rate * (draft_ms + ms - before)
            if value > best_value:
                best_value, count, best_length = value, n, length
    return Decision(order[:count], best_length, limit, best_value) if count else best


def _gains(slot: ModelSlot, forecast: Forecast, num_lengths: int, reading: float) -> list[float]:
    """Expected further tokens of a draft of each length of the ladder for this slot, less what has
    to be earned for what is read first.
    """
    tokens = forecast.tokens[:num_lengths]
    most = min(num_lengths, bisect_right(LENGTHS, slot.max_tokens))
    tokens[most:] = [tokens[most - 1]] * (len(tokens) - most)
    prefix, to_beat = slot.prefix, slot.to_beat
    if prefix == 1.0 and not (to_beat or reading):
        return tokens
    to_beat += reading
    return [prefix * x * (1.0 - reading) - to_beat for x in tokens]
