"""Ways to answer ("arms"), measured in turn on the same questions until the ratios are certain."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headstart.extras.bench.client import Answer
from headstart.extras.bench.report import MeanRatio

LEAST_ROUNDS, MOST_ROUNDS = 3, 40
OFF, AUTO = "off", "auto"


class Cell(NamedTuple):
    """What a line of the table is about."""

    workload: str
    temperature: float
    users: int

    def __str__(self) -> str:
        return f"{self.workload}, temperature {self.temperature:g}, {self.users} at a time"


@dataclass(slots=True)
class Score:
    """One arm in one cell."""

    rates: list[float] = field(default_factory=list)  # tokens/s of all users, by round
    first_seconds: list[float] = field(default_factory=list)  # by answer
    longest_waits: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def add(self, answers: Sequence[Answer]) -> None:
        """Count a round: from the first request to the last token."""
        num_tokens = sum(answer.num_tokens for answer in answers)
        started = min(answer.sent for answer in answers)
        self.rates.append(num_tokens / (max(a.arrivals[-1] for a in answers) - started))
        self.first_seconds += [answer.first_seconds for answer in answers]
        self.longest_waits += [answer.longest_wait for answer in answers]
        self.num_tokens += num_tokens
        self.num_drafted += sum(answer.timings.get("draft_n", 0) for answer in answers)
        self.num_accepted += sum(answer.timings.get("draft_n_accepted", 0) for answer in answers)

    @property
    def rate(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def tokens_per_step(self) -> float:
        """Of one answer; every step emits one token that was not drafted."""
        return self.num_tokens / max(1, self.num_tokens - self.num_accepted)

    def relative_to(self, other: Score) -> MeanRatio:
        """Ratio of the rates, round by round."""
        return MeanRatio.of_ratios([a / b for a, b in zip(self.rates, other.rates, strict=True)])


Scores = dict[Cell, dict[str, Score]]
Play = Callable[[str, Cell, int], Sequence[Answer]]
"""(arm, cell, round) -> the answers to the round's questions."""


def compare(
    arms: Sequence[str],
    cells: Sequence[Cell],
    play: Play,
    *,
    error: float,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Scores:
    """Let all arms answer each round's questions, each time another first.

    A cell is done when the standard error of every ratio to the first arm is at most `error`. No
    round begins after `seconds`, but each cell gets the least number of rounds.
    """
    scores: Scores = {cell: {arm: Score() for arm in arms} for cell in cells}
    deadline = clock() + seconds
    for number in range(MOST_ROUNDS):
        for cell in cells:
            own = scores[cell]
            if number >= LEAST_ROUNDS and (clock() > deadline or is_certain(own, error)):
                continue
            start = number % len(arms)
            for arm in [*arms[start:], *arms[:start]]:
                own[arm].add(play(arm, cell, number))
    return scores


def is_certain(scores: Mapping[str, Score], error: float) -> bool:
    """Whether all ratios to the first arm are known well enough."""
    first, *others = scores.values()
    return all(other.relative_to(first).error <= error for other in others)


def best_fixed(scores: Mapping[str, Score]) -> str:
    """The arm that a careful user would have set by hand: off, or the best fixed length."""
    by_hand = [name for name in scores if name == OFF or name.startswith("fixed")]
    return max(by_hand or scores, key=lambda name: scores[name].rate)
