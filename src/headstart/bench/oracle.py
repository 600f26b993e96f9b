"""What hindsight would have earned: the same guesses, with lengths chosen by one who knows the text.

A recorder lets every speculator draft at every position of a text and shows the target none of it. Afterwards, per
step, only tokens that will be accepted are verified, as many as pay: those with the highest

    tokens - rate * (ms(rows) + draft rounds * ms per round)

where `rate` is what the oracle itself reaches (found by iteration). Nobody can do better by choosing lengths.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headstart.bench.measure import LONGEST_DRAFT, Run
from headstart.control.cost import CostTable
from headstart.speculators import Speculator
from headstart.structures.prefix import common_prefix_length
from headstart.types import NO_DRAFT, Capability, Decoded, Draft, DraftRequest

LONGEST_MODEL_DRAFT = 16
ITERATIONS = 5


@dataclass(slots=True)
class Guesses:
    """How many tokens were guessed right at each position of one text: by texts, by draft models."""

    text: list[int] = field(default_factory=list)
    model: list[int] = field(default_factory=list)


class Recorder(Speculator):
    """Lets others draft and keeps the drafts for itself. A model to the scheduler, so that it gets `choose`."""

    name = "recorder"
    needs = frozenset({Capability.LOGITS})
    is_model = True

    def __init__(self, speculators: Sequence[Speculator]) -> None:
        self._speculators = speculators
        self._drafts: dict[tuple[int, int], list[tuple[bool, list[int]]]] = {}
        self._round_ms: list[float] = []

    @property
    def round_ms(self) -> float:
        """Milliseconds per token that draft models draft, for all slots together; 0 without one."""
        return statistics.median(self._round_ms) if self._round_ms else 0.0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        for speculator in self._speculators:
            longest = LONGEST_MODEL_DRAFT if speculator.is_model else LONGEST_DRAFT
            started = time.perf_counter()
            drafts = speculator.propose([replace(request, max_tokens=longest) for request in requests])
            rounds = max(len(draft.tokens) for draft in drafts)
            if speculator.is_model and rounds == longest:
                self._round_ms.append(1000.0 * (time.perf_counter() - started) / rounds)
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

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        for speculator in self._speculators:
            speculator.begin(seq_id, prompt, namespace)

    def observe(self, decoded: Decoded) -> None:
        for speculator in self._speculators:
            if Capability.LOGITS in speculator.needs:
                speculator.observe(decoded)

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        for speculator in self._speculators:
            speculator.accept(seq_id, emitted, num_accepted)

    def end(self, seq_id: int) -> None:
        for speculator in self._speculators:
            speculator.end(seq_id)


class Oracle:
    """Chooses lengths in hindsight on a learned cost curve."""

    def __init__(self, runs: Iterable[Run], round_ms: float, num_users: int) -> None:
        """Learn what rows cost from all steps of all arms that read no prompt."""
        table = CostTable()
        for run in runs:
            for step in run.steps:
                if not step.num_prompt_rows and step.num_verify_rows:
                    table.observe(step.num_verify_rows, 0, 1000.0 * step.decode_seconds)
        self._curve = table.curve(num_users * (1 + LONGEST_DRAFT), 0)
        self._round_ms = round_ms

    def speedup(self, texts: Sequence[Sequence[Guesses]]) -> float:
        """How much faster than one row a slot; one entry per group of texts that ran together."""
        plain = rate = self._rate(texts, None)
        for _ in range(ITERATIONS):
            rate = self._rate(texts, rate)
        return rate / plain

    def curve(self, rows: Sequence[int]) -> Mapping[int, float]:
        """Milliseconds by rows."""
        return {n: round(self._curve[n], 2) for n in rows if n < len(self._curve)}

    def _rate(self, texts: Sequence[Sequence[Guesses]], rate: float | None) -> float:
        """Tokens per millisecond; without a rate nothing is drafted."""
        tokens, milliseconds = 0, 0.0
        for group in texts:
            places = [0] * len(group)
            while running := [i for i, guesses in enumerate(group) if places[i] < len(guesses.text)]:
                right = [self._right(group[i], places[i]) for i in running]
                lengths, spent = self._choose(right, rate) if rate is not None else ([0] * len(running), 0.0)
                milliseconds += spent + self._curve[len(running) + sum(lengths)]
                tokens += len(running) + sum(lengths)
                for i, length in zip(running, lengths, strict=True):
                    places[i] += 1 + length
        return tokens / milliseconds

    def _right(self, guesses: Guesses, at: int) -> tuple[int, int]:
        """Tokens that a text and a model guessed right here; the last token of a text needs no guess."""
        left = len(guesses.text) - at - 1
        return min(left, guesses.text[at]), min(left, guesses.model[at])

    def _choose(self, right: Sequence[tuple[int, int]], rate: float) -> tuple[list[int], float]:
        """Lengths per slot, and the milliseconds to draft them."""
        best, best_value = ([0] * len(right), 0.0), 0.0
        for rounds in range(max(model for _, model in right) + 1):
            offered = [max(text, min(model, rounds)) for text, model in right]
            spent = rounds * self._round_ms
            num_rows = self._best_rows(len(right), sum(offered), rate)
            value = num_rows - rate * (self._curve[len(right) + num_rows] - self._curve[len(right)] + spent)
            if value > best_value:
                best, best_value = (_take(offered, num_rows), spent), value
        return best

    def _best_rows(self, base: int, most: int, rate: float) -> int:
        return max(range(most + 1), key=lambda rows: rows - rate * self._curve[base + rows])


def _take(offered: Sequence[int], num_rows: int) -> list[int]:
    taken = []
    for length in offered:
        taken.append(min(length, num_rows))
        num_rows -= taken[-1]
    return taken
