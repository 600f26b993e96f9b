"""What hindsight would have earned: the same drafts, with lengths chosen by one who knows the text.

A recorder lets every speculator draft at every position of a text and shows the target none of it.
Afterwards only tokens that will be accepted are verified, in each step as many as make the whole
text ready soonest. For one user that is a shortest path, exact: nobody does better by choosing
lengths. For more users it is the soonest of a few plans that look ahead for each slot alone: near
the best (tests say how near), not quite it. Per slot and step a text's draft or a draft model's is
taken; one is not continued with the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from benchmarks.lib.arms import LONGEST_DRAFT, Run
from numpy.typing import NDArray

from headstart.speculators import Speculator
from headstart.structures.prefix import common_prefix_length
from headstart.types import NO_DRAFT, Draft, DraftRequest

LONGEST_MODEL_DRAFT = 16
ITERATIONS = 2


@dataclass(slots=True)
class Guesses:
    """How many tokens texts and draft models guessed right at each position of one text."""

    text: list[int] = field(default_factory=list)
    model: list[int] = field(default_factory=list)


class Recorder(Speculator):
    """Lets others draft and keeps the drafts for itself. A model to the scheduler, so that it gets
    `choose`.
    """

    name = "recorder"
    is_model = True

    def __init__(
        self, speculators: Sequence[Speculator], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._speculators = speculators
        self._clock = clock
        self._drafts: dict[tuple[int, int], list[tuple[bool, list[int]]]] = {}
        self._round_ms: list[float] = []

    @property
    def round_ms(self) -> float:
        """Milliseconds per token that draft models draft, for all slots together; 0 without one."""
        return statistics.median(self._round_ms) if self._round_ms else 0.0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        for speculator in self._speculators:
            longest = LONGEST_MODEL_DRAFT if speculator.is_model else LONGEST_DRAFT
            started = self._clock()
            drafts = speculator.propose(
                [replace(request, max_tokens=longest) for request in requests]
            )
            rounds = max(len(draft.tokens) for draft in drafts)
            if speculator.is_model and rounds == longest:
                self._round_ms.append(1000.0 * (self._clock() - started) / rounds)
            for request, draft in zip(requests, drafts, strict=True):
                at = (request.seq_id, len(request.tokens))
                self._drafts.setdefault(at, []).append((speculator.is_model, list(draft.tokens)))
        return [NO_DRAFT] * len(requests)

    def guesses(self, run: Run, num_prompts: Sequence[int]) -> list[Guesses]:
        """Compare what was drafted in a run with its texts; forgets the drafts."""
        all_guesses = []
        for seq_id, (tokens, num_prompt) in enumerate(zip(run.texts, num_prompts, strict=True)):
            guesses = Guesses()
            for at in range(len(tokens)):
                rest = tokens[at:]
                best = {False: 0, True: 0}
                for is_model, draft in self._drafts.get((seq_id, num_prompt + at), ()):
                    best[is_model] = max(best[is_model], common_prefix_length(draft, rest))
                guesses.text.append(best[False])
                guesses.model.append(best[True])
            all_guesses.append(guesses)
        self._drafts.clear()
        return all_guesses

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        for speculator in self._speculators:
            speculator.begin(seq_id, text, namespace)

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        for speculator in self._speculators:
            speculator.accept(seq_id, emitted, num_accepted)

    def end(self, seq_id: int) -> None:
        for speculator in self._speculators:
            speculator.end(seq_id)


def most_rows(num_users: int) -> int:
    """Rows of the largest step that drafts may ask for."""
    return num_users * (1 + LONGEST_DRAFT)


ToGo = Callable[[Guesses, int], NDArray[np.float64]]
"""(a text, slots that run) -> milliseconds that the slot still needs at each position, shape
(num_tokens + 1,).
"""


class Oracle:
    """Chooses lengths in hindsight.

    Args:
        curve: milliseconds of a step by rows, from 0 to `most_rows`.
        round_ms: milliseconds per token that draft models draft, for all slots together.
    """

    def __init__(self, curve: Sequence[float], round_ms: float) -> None:
        self._curve = np.asarray(curve, np.float64)
        self._round_ms = round_ms

    def plain(self, texts: Sequence[Sequence[Guesses]]) -> float:
        """Tokens per millisecond without drafts; one entry per group of texts that ran together."""
        return _num_tokens(texts) / sum(map(self._plain, texts))

    def best(self, texts: Sequence[Sequence[Guesses]]) -> float:
        """Tokens per millisecond with the lengths of hindsight."""
        spent = [min(self._plain(group), self._spent(group, self._shortest)) for group in texts]
        for _ in range(ITERATIONS):
            rate = _num_tokens(texts) / sum(spent)

            def at_rate(
                guesses: Guesses, num_running: int, rate: float = rate
            ) -> NDArray[np.float64]:
                return np.arange(len(guesses.text), -1, -1) / rate

            spent = [
                min(before, self._spent(group, at_rate))
                for before, group in zip(spent, texts, strict=True)
            ]
        return _num_tokens(texts) / sum(spent)

    def _plain(self, group: Sequence[Guesses]) -> float:
        """Milliseconds of a group without drafts."""
        lengths = [len(guesses.text) for guesses in group]
        running = [sum(length > step for length in lengths) for step in range(max(lengths))]
        return float(self._curve[running].sum())

    def _shortest(self, guesses: Guesses, num_running: int) -> NDArray[np.float64]:
        """Time to go if all slots that run verify as many tokens as this one: exact where it is
        alone.
        """
        shared = self._curve[num_running::num_running] / num_running
        to_go = np.zeros(len(guesses.text) + 1)
        for at in range(len(guesses.text) - 1, -1, -1):
            text, model = _right(guesses, at)
            lengths = np.arange(max(text, model) + 1)
            rounds = np.where(lengths <= text, 0, lengths)
            times = (
                shared[lengths] + rounds * self._round_ms / num_running + to_go[at + 1 + lengths]
            )
            to_go[at] = times.min()
        return to_go

    def _spent(self, group: Sequence[Guesses], to_go: ToGo) -> float:
        """Milliseconds of a group if every step looks as far ahead as `to_go` does."""
        places, spent = [0] * len(group), 0.0
        ahead: dict[int, NDArray[np.float64]] = {}
        while running := [i for i, guesses in enumerate(group) if places[i] < len(guesses.text)]:
            if len(running) != len(ahead):
                ahead = {i: to_go(group[i], len(running)) for i in running}
            right = [_right(group[i], places[i]) for i in running]
            lengths, rounds = self._choose(right, [ahead[i][places[i] + 1 :] for i in running])
            spent += float(self._curve[len(running) + sum(lengths)]) + rounds * self._round_ms
            for i, length in zip(running, lengths, strict=True):
                places[i] += 1 + length
        return spent

    def _choose(
        self, right: Sequence[tuple[int, int]], ahead: Sequence[NDArray[np.float64]]
    ) -> tuple[list[int], int]:
        """Lengths per slot and draft rounds of one step; `ahead` is each slot's time to go by
        length.
        """
        plans: dict[tuple[int, ...], tuple[float, list[int], int]] = {}
        for rounds in range(max(model for _, model in right) + 1):
            offered = tuple(max(text, min(model, rounds)) for text, model in right)
            if offered not in plans:
                spent, lengths = self._split(
                    [to_go[: n + 1] for n, to_go in zip(offered, ahead, strict=True)]
                )
                plans[offered] = (spent + rounds * self._round_ms, lengths, rounds)
        _, lengths, rounds = min(plans.values())
        return lengths, rounds

    def _split(self, ahead: Sequence[NDArray[np.float64]]) -> tuple[float, list[int]]:
        """The number of draft rows, and who has them, so that this step and what is ahead take
        least.
        """
        # by draft rows: time ahead of the slots so far, length of the last one
        total, taken = np.zeros(1), []
        for to_go in ahead:
            sums = np.full((len(to_go), len(total) + len(to_go) - 1), np.inf)
            for length, milliseconds in enumerate(to_go):
                sums[length, length : length + len(total)] = total + milliseconds
            taken.append(sums.argmin(0))
            total = sums.min(0)
        total = total + self._curve[len(ahead) : len(ahead) + len(total)]
        num_rows = int(total.argmin())
        best, lengths = float(total[num_rows]), []
        for by_rows in reversed(taken):
            lengths.append(int(by_rows[num_rows]))
            num_rows -= lengths[-1]
        return best, lengths[::-1]


def _num_tokens(texts: Sequence[Sequence[Guesses]]) -> int:
    return sum(len(guesses.text) for group in texts for guesses in group)


def _right(guesses: Guesses, at: int) -> tuple[int, int]:
    """Tokens that a text and a model guessed right here; a text's last token needs no guess."""
    left = len(guesses.text) - at - 1
    return min(left, guesses.text[at]), min(left, guesses.model[at])
