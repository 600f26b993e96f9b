"""Tests whether a tuned draft model pays: later conversations, resampled in pairs.

It has to beat its base in tokens a step at one fixed length, and the best there is without it,
copies from the same texts included, in tokens per second. Conversations are drawn, not tokens: the
tokens of one conversation are alike.

Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.extras.distill.acceptance import DraftRule, Walk, walk
from headstart.extras.distill.measure import Findings

LEAST_CONVERSATIONS = 8
LEAST_RATIO = 1.05  # of the best without it
COMMON = DraftRule(8)  # at which two draft models' tokens a step are compared


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval over resampled values."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True)
class Proof:
    """What speaks for a tuned model or against it, by replay or by the clock."""

    facts: Mapping[str, Any]  # JSON-ready
    report: Sequence[str]  # lines to print
    refusal: str  # the reason against promotion; "" if there is none


def prove(found: Findings, base: str, tuned: str) -> Proof:
    """Compare a tuned model with its base and with all other drafters.

    The intervals are of 95 %, over conversations. `gain`: further tokens a step, against the base;
    `ratio`: tokens per second of `own`, the best arm with it, by those of `best`, the best without.
    """
    best, own = (
        max(
            (name for name in found.arms if (tuned in name.split(", ")) == has_it),
            key=lambda name: found.arms[name].rate,
        )
        for has_it in (False, True)
    )
    fixed = [
        [
            walk(text, [outcomes], COMMON, found.cost)
            for text, outcomes in zip(found.texts, found.models[name][0], strict=True)
        ]
        for name in (tuned, base)
    ]
    lengths = [_by_conversation(found, walks, "num_steps") for walks in fixed]
    rates = [
        _by_conversation(found, found.arms[name].walks, "milliseconds") for name in (own, best)
    ]
    num, refusal = len(lengths[0]), ""
    gain = compared(lengths[0], lengths[1], np.subtract)
    ratio = compared(rates[0], rates[1], np.divide)
    if num < LEAST_CONVERSATIONS:
        refusal = (
            f"there are {num} later conversations, and {LEAST_CONVERSATIONS} are the least to "
            "judge by; record more texts"
        )
    elif gain.low <= 0.0:
        refusal = f"its gain of {gain} tokens a step over the base may be chance"
    elif ratio.value < LEAST_RATIO or ratio.low <= 1.0:
        refusal = (
            f"its {ratio} times the tokens/s of {best} are too little: {LEAST_RATIO} are needed, "
            "and more than 1 for certain"
        )
    facts = {"num_conversations": num, "gain": asdict(gain), "ratio": asdict(ratio)}
    report = [
        f"tokens a step, more than the base, with drafts of {COMMON.longest}: {gain}",
        f"tokens/s of {own}, in multiples of {best}: {ratio}",
    ]
    if refusal:
        report.append(f"not promoted: {refusal}")
    return Proof({**facts, "best": best, "own": own}, report, refusal)


def _by_conversation(found: Findings, walks: Sequence[Walk], cost: str) -> NDArray[np.float64]:
    """Tokens and the cost of each conversation, shape (conversations, 2)."""
    numbers = {n: i for i, n in enumerate(sorted({t.conversation for t in found.texts}))}
    sums = np.zeros((len(numbers), 2))
    for text, one in zip(found.texts, walks, strict=True):
        sums[numbers[text.conversation]] += one.num_tokens, getattr(one, cost)
    return sums


def compared(ours: NDArray[np.float64], theirs: NDArray[np.float64], by: np.ufunc) -> Interval:
    """Compare tokens per time of two arms; the interval is over resampled rows.

    Args:
        ours, theirs: tokens and time, shape (rows, 2).
    """
    num = len(ours)
    draws = np.random.default_rng(0).integers(num, size=(4000, num))

    def statistic(drawn: NDArray[np.intp]) -> Any:
        totals = (one[drawn].sum(-2) for one in (ours, theirs))
        return by(*(total[..., 0] / total[..., 1] for total in totals))

    low, high = np.quantile(statistic(draws), (0.025, 0.975))
    return Interval(float(statistic(np.arange(num))), float(low), float(high))
