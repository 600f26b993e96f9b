"""Measures ways to answer ("arms") in turn on the same questions until the ratios are certain.

After a near tie two arms may write different texts, one of which may end much earlier. Its few
tokens then carry the whole time of prefill: 33 tokens instead of 64 looked like 0.7 of the speed.
So all arms of a round are compared at their average number of tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from headstart.extras.bench.client import Answer
from headstart.extras.bench.report import MeanRatio

LEAST_ROUNDS = 3
OFF, AUTO, OTHER = "off", "auto", "other"
BY_HAND, OTHER_SERVER = "best by hand", "best other"


class Cell(NamedTuple):
    """The conditions of one line of the table."""

    workload: str
    temperature: float
    users: int

    def __str__(self) -> str:
        return f"{self.workload}, temperature {self.temperature:g}, {self.users} at a time"


@dataclass(slots=True)
class Score:
    """One arm in one cell."""

    rates: list[float] = field(default_factory=list)  # tokens/s of all users, by round
    answers: list[Answer] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)  # see `Client.counters`

    def add(self, answers: Sequence[Answer], users: int, num_usual: float) -> None:
        """Count a round, from the first request to the last token, as if it had `num_usual`."""
        num_tokens = sum(answer.num_tokens for answer in answers)
        seconds = max(a.arrivals[-1] for a in answers) - min(a.sent for a in answers)
        reading = min(seconds, sum(answer.first_seconds for answer in answers) / users)
        writing = (seconds - reading) * num_usual / max(1, num_tokens)
        self.rates.append(num_usual / (reading + writing))
        self.answers += answers

    def count(self, counted: Mapping[str, float]) -> None:
        for name, number in counted.items():
            self.counters[name] = self.counters.get(name, 0.0) + number

    def total(self, timing: str) -> float:
        """Sum over the answers of what the server reports; 0 if it does not."""
        return float(sum(answer.timings.get(timing, 0) for answer in self.answers))

    @property
    def rate(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def num_tokens(self) -> int:
        return sum(answer.num_tokens for answer in self.answers)

    @property
    def num_drafted(self) -> int:
        return int(self.total("draft_n"))

    @property
    def num_accepted(self) -> int:
        return int(self.total("draft_n_accepted"))

    @property
    def read_rate(self) -> float:
        """Prompt tokens per second that were not cached; 0 if the server does not report it."""
        milliseconds = self.total("prompt_ms")
        return 1000.0 * self.total("prompt_n") / milliseconds if milliseconds else 0.0

    @property
    def written_rate(self) -> float:
        """Tokens a second of one answer, once it has begun."""
        seconds = sum(answer.arrivals[-1] - answer.arrivals[0] for answer in self.answers)
        written = sum(max(0, answer.num_tokens - 1) for answer in self.answers)
        return written / seconds if seconds else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens per step of one answer; every step emits one token that was not drafted."""
        return self.num_tokens / max(1, self.num_tokens - self.num_accepted)

    @property
    def rows_per_token(self) -> float:
        """Rows that the target decodes for a token of an answer."""
        rows = self.num_tokens - self.num_accepted + self.num_drafted
        return rows / max(1, self.num_tokens)

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the engine's time: target decodes, drafting, the rest; empty if unknown."""
        parts = {name: self.counters.get(name, 0.0) for name in ("target", "draft", "other")}
        total = sum(parts.values())
        return {name: seconds / total for name, seconds in parts.items()} if total else {}

    @property
    def acceptance(self) -> list[tuple[float, float]]:
        """Draft tokens verified and accepted, by position in the draft."""
        found: list[tuple[float, float]] = []
        while drafted := self.counters.get(f"drafted {len(found)}"):
            found.append((drafted, self.counters[f"accepted {len(found)}"]))
        return found

    def relative_to(self, other: Score) -> MeanRatio:
        """Ratio of the rates, round by round."""
        return MeanRatio.of_ratios([a / b for a, b in zip(self.rates, other.rates, strict=True)])


Scores = dict[Cell, dict[str, Score]]
Play = Callable[[str, Cell, int], tuple[Sequence[Answer], Mapping[str, float]]]
"""(arm, cell, number of the round) -> its answers, and by how much `Client.counters` grew."""


def compare(
    arms: Sequence[str],
    cells: Sequence[Cell],
    play: Play,
    *,
    error: float,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Scores:
    """Let all arms answer each round's questions, in rotating order.

    A cell is done when the standard error of every ratio to the first arm is at most `error`. No
    round begins after `seconds`, but each cell gets the least number of rounds. Ctrl-C ends it
    early: what has been measured by then is returned.

    Raises:
        KeyboardInterrupt: no cell has a whole round yet.
    """
    scores: Scores = {cell: {arm: Score() for arm in arms} for cell in cells}
    deadline = clock() + seconds
    try:
        for number, (cell, own) in product(range(40), scores.items()):
            if number >= LEAST_ROUNDS and (clock() > deadline or is_certain(own, error)):
                continue
            start = number % len(arms)
            played = {arm: play(arm, cell, number) for arm in [*arms[start:], *arms[:start]]}
            written = [one.num_tokens for answers, _ in played.values() for one in answers]
            for arm, (answers, counted) in played.items():
                own[arm].add(answers, cell.users, sum(written) / len(arms))
                own[arm].count(counted)
    except KeyboardInterrupt:
        scores = {cell: own for cell, own in scores.items() if own[arms[0]].rates}
        if not scores:
            raise
    return scores


def is_certain(scores: Mapping[str, Score], error: float) -> bool:
    """Whether all ratios to the first arm are known well enough."""
    first, *others = scores.values()
    return all(other.relative_to(first).error <= error for other in others)


def own_arm(scores: Mapping[str, Score]) -> str:
    """The arm that a comparison is about: auto, or the only one."""
    return AUTO if AUTO in scores else next(iter(scores))


def bases(scores: Mapping[str, Score]) -> dict[str, str]:
    """The arms that it is compared with, by their label: off, what a careful user would have set
    (off or the best other one but auto), and the fastest other server.
    """
    others = [name for name in scores if name.startswith(OTHER)]
    groups = {OTHER_SERVER: others}
    if own_arm(scores) == AUTO:
        by_hand = [name for name in scores if name != AUTO and name not in others]
        groups = {OFF: [OFF], BY_HAND: by_hand, OTHER_SERVER: others}
    return {
        label: max(names, key=lambda name: scores[name].rate)
        for label, names in groups.items()
        if names
    }
