"""Users who generate simulated texts on simulated machines, under control or by other policies."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from benchmarks.lib.curves import CostCurve
from benchmarks.lib.simulated_texts import (
    CURVES,
    EXPERT_CURVES,
    TILED_CURVES,
    WORKLOADS,
    Kind,
    Place,
    make_text,
)
from benchmarks.lib.steps import NO_BATCH, lengths, make_end, make_plan, make_record

from headstart.control.controller import Controller
from headstart.control.cost import REFERENCE_ROWS, Sample
from headstart.control.values import Step
from headstart.scheduler.step import Offer, StepPlan
from headstart.scheduler.warm_up import ROUNDS, ROWS
from headstart.types import Draft

LONGEST = 16  # draft tokens that a speculator offers
REQUEST_TOKENS = 400
NUM_PLAIN = 60
CONTEXT, GROWN_CONTEXT = 500, 16384


@dataclass
class Slot:
    """One user: a stream of requests over one long text."""

    text: list[Place]
    first_id: int
    at: int = 0
    prompt: int = 0  # tokens of every request's prompt
    read: int = 0  # tokens of prompt and answer that the draft model has read
    read_for: int = -1  # the request of `read`
    answer: int = REQUEST_TOKENS  # tokens of a request
    length: int = 2**30  # of the last of them
    guesses: list[Place] | None = None  # of a draft model, if they are not those of `text`

    @property
    def number(self) -> int:
        return self.first_id + self.at // self.answer

    def run(self, longest: int = LONGEST) -> int:
        """Draft tokens that would be accepted here."""
        return _run(self.text, self.at, longest)

    def run_model(self, longest: int) -> int:
        """The same of the draft model's."""
        guesses = self.text if self.guesses is None else self.guesses
        return _run(guesses, self.at, longest)

    @property
    def num_answered(self) -> int:
        return self.at % self.answer

    @property
    def unread(self) -> int:
        """Tokens behind what the draft model has read, the newest one not counted."""
        if self.read_for != self.number:
            self.read, self.read_for = 0, self.number
        return max(0, self.prompt + self.num_answered - self.read - 1)

    def read_on(self, num_tokens: int) -> int:
        """The draft model reads as many tokens of the text; returns how many there were."""
        num_read = min(num_tokens, self.unread)
        self.read += num_read
        return num_read

    def catch_up_to(self, drafted: int) -> None:
        """The draft model read the text and its own draft but the last token; what is right of that
        stays.
        """
        self.read = self.prompt + self.num_answered + self.run_model(max(0, drafted - 1))


def _run(places: Sequence[Place], at: int, longest: int) -> int:
    """How many of the places from `at` on are guessed, up to the first that is not."""
    for i, place in enumerate(places[at : at + longest]):
        if not place.is_guessed:
            return i
    return longest


class Choice(NamedTuple):
    """What a policy does in one step."""

    lengths: Sequence[int]  # draft tokens per slot
    draft_ms: float = 0.0  # that it took to draft them
    num_padding: int = 0  # rows that nobody needs
    num_right: Sequence[int] | None = None  # draft tokens that are; None: as the text goes on


Lengths = Callable[[Sequence[Slot]], Choice]


@dataclass
class Score:
    """Tokens and milliseconds of one simulation."""

    tokens: int = 0
    milliseconds: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return 1000.0 * self.tokens / self.milliseconds


class Simulation:
    """One workload on one machine. Every policy sees the same texts and noise.

    growth: tokens of context per token of text (0: a constant context); a row's attention to
    GROWN_CONTEXT tokens takes as long as a step of one row.
    """

    def __init__(
        self,
        workload: str,
        curve: str,
        num_slots: int,
        *,
        tokens: int = 3000,
        seed: int = 1,
        growth: int = 0,
        prompt: int = 0,
        answer: int = REQUEST_TOKENS,
    ) -> None:
        self.curve, self.can_pad = (
            (CURVES | TILED_CURVES | EXPERT_CURVES)[curve],
            curve in TILED_CURVES,
        )
        self.num_slots, self.tokens, self.seed, self.growth = num_slots, tokens, seed, growth
        self.prompt, self.answer = prompt, answer
        self.num_prompt_rows = 0  # of this step
        # users who wait for prompts, and how many of them get a first token from this step
        self.num_reading = self.num_first = 0
        self.kinds = [WORKLOADS[workload](slot) for slot in range(num_slots)]
        self._texts: dict[int, list[list[Place]]] = {}  # by seed

    make = staticmethod(make_text)
    mixed_rows = 0  # prompt rows of each step, after NUM_PLAIN steps without
    disturbed_ms = 0.0  # that the next step takes longer

    def context(self, slots: Sequence[Slot]) -> int:
        return CONTEXT + self.growth * sum(slot.num_answered for slot in slots) // len(slots)

    def cost(self, rows: int, context: int = CONTEXT) -> float:
        return self.curve(rows) + self.curve(1) * rows * (context - CONTEXT) / GROWN_CONTEXT

    def step_ms(self, lengths: Sequence[int], num_rows: int, context: int) -> float:
        """Time of a step with drafts of these lengths."""
        return self.cost(num_rows, context)

    def warm_up(self, controller: Controller, curve: CostCurve | None = None) -> None:
        """Time some decodes, as a scheduler does before its first request; of another curve where
        its rows do not take as long as those of texts.
        """
        curve = self.curve if curve is None else curve
        noise, reference = random.Random(self.seed), curve(REFERENCE_ROWS)
        samples = [
            Sample(rows, 0, curve(rows) * noise.uniform(0.95, 1.05), reference)
            for rows in ROWS * ROUNDS
        ]
        controller.cost.calibrate(samples)

    def slots(self) -> list[Slot]:
        if self.seed not in self._texts:
            self._texts[self.seed] = [self._make_text(i) for i in range(self.num_slots)]
        return [
            Slot(text, i * 100000, prompt=self.prompt, answer=self.answer)
            for i, text in enumerate(self._texts[self.seed])
        ]

    def _make_text(self, slot: int) -> list[Place]:
        rng, text = random.Random(f"{self.seed}-{slot}"), list[Place]()
        most = min(3 * LONGEST // 8, self.num_slots)  # shares of all tokens that one slot may get
        while len(text) < most * self.tokens + 2 * REQUEST_TOKENS:
            text += self.make(self.kinds[slot], rng, REQUEST_TOKENS)
        return text

    def run(
        self,
        lengths: Lengths,
        after: Callable[[Sequence[Slot], float], None] | None = None,
        num_uncounted: int = 0,
    ) -> Score:
        """Generate until every slot has emitted `tokens` on average; the score is without the first
        steps.
        """
        noise, score, slots, num_steps = random.Random(self.seed), Score(), self.slots(), 0
        self.num_prompt_rows = self.num_reading = 0  # also after another run of the same texts
        while sum(slot.at for slot in slots) < self.tokens * self.num_slots:
            if num_steps == NUM_PLAIN:
                self.num_prompt_rows, self.num_reading = self.mixed_rows, self.mixed_rows > 0
            num_steps += 1
            chosen, draft_ms, num_padding, num_right = lengths(slots)
            num_rows = self.num_slots + sum(chosen) + num_padding + self.num_prompt_rows
            milliseconds = self.step_ms(chosen, num_rows, self.context(slots)) + self.disturbed_ms
            seen = milliseconds * noise.uniform(0.9, 1.1) * (3.0 if noise.random() < 0.01 else 1.0)
            if num_right is None:
                num_right = [slot.run(n) for slot, n in zip(slots, chosen, strict=True)]
            emitted = [1 + n for n in num_right]
            if num_steps > num_uncounted:
                score.tokens += sum(emitted)
                score.milliseconds += milliseconds + draft_ms
            for slot, n in zip(slots, emitted, strict=True):
                slot.at += n
            if after is not None:
                after(slots, seen)
        return score

    def off(self) -> Score:
        return self.run(lambda slots: Choice([0] * len(slots)))

    def fixed(self, length: int) -> Score:
        return self.run(
            lambda slots: Choice([length * slot.text[slot.at].has_draft for slot in slots])
        )

    def oracle(self) -> Score:
        """Lengths in hindsight: only tokens that will be accepted, and only as many as pay."""
        return self._best_known(lambda slot, _: [1.0] * slot.run())

    def reachable(self) -> Score:
        """Lengths by the true chances."""
        return self._best_known(lambda slot, kind: kind.survival(slot.text[slot.at], LONGEST))

    def _best_known(self, survival: Callable[[Slot, Kind], list[float]]) -> Score:
        """Maximise tokens - rate * ms in each step, and find the rate by repeating it."""
        speedup, score = 1.0, Score()
        plain = self.off().speed

        def lengths(slots: Sequence[Slot]) -> Choice:
            offers = [
                survival(slot, kind) if slot.text[slot.at].has_draft else []
                for slot, kind in zip(slots, self.kinds, strict=True)
            ]
            base = len(slots)
            # of this context: what a plain step would earn here, sped up
            rate = speedup * base / self.cost(base)
            order = sorted(((s, i) for i, offer in enumerate(offers) for s in offer), reverse=True)
            values = accumulate((s for s, _ in order), initial=0.0)
            best = max((v - rate * self.cost(base + n), -n) for n, v in enumerate(values))
            chosen = [0] * base
            for _, i in order[: -best[1]]:
                chosen[i] += 1
            return Choice(chosen)

        for _ in range(3):
            score = self.run(lengths)
            speedup = score.speed / plain
        return score

    def auto(self, controller: Controller | None = None, num_uncounted: int = 0) -> Score:
        """Text speculators under control, with labels from drafts that were not verified."""
        policy = AutoText(self, controller or Controller())
        return self.run(policy.lengths, policy.after, num_uncounted)


def places(start: int, num_right: int, length: int) -> list[int]:
    """A draft's tokens, named by their places; a wrong guess is none of them."""
    return [*range(start, start + num_right), *[-1] * (length - num_right)]


class Learner:
    """Asks control about each simulated step, and tells it what became of it."""

    def __init__(self, simulation: Simulation, controller: Controller) -> None:
        self.simulation, self.controller = simulation, controller
        self.plan = StepPlan(NO_BATCH, 0.0)
        self._starts: list[int] = []
        self._running = set[int]()

    def begin(self, slots: Sequence[Slot], num_again: int = 0) -> StepPlan:
        """The plan of the next step, without drafts."""
        for slot in slots:
            if slot.number not in self._running:
                self.controller.begin(slot.number, "")
                self._running.add(slot.number)
        self._starts = [slot.at for slot in slots]
        num, context = len(slots), self.simulation.context(slots)
        numbers = [slot.number for slot in slots]
        num_rows = num + num_again + self.simulation.num_prompt_rows
        step = self.shape(num, num_rows, context)
        step.num_reading, step.num_first = self.simulation.num_reading, self.simulation.num_first
        self.plan = make_plan(step, numbers=numbers)
        return self.plan

    def shape(self, num_slots: int, num_rows: int, context: int) -> Step:
        return Step(num_slots, num_rows, context, can_pad=self.simulation.can_pad)

    def offer_texts(self, slots: Sequence[Slot]) -> None:
        """What a text speculator drafts for these slots."""
        for answer, slot in zip(self.plan.answers, slots, strict=True):
            place = slot.text[slot.at]
            if place.has_draft:
                tokens, scores = places(slot.at, slot.run(), LONGEST), [place.confidence] * LONGEST
                answer.offers.append(Offer(Draft(tokens, scores, "text"), [], []))
                survival = self.controller.survival("text", scores, slot.number)
                answer.take(tokens, ["text"] * LONGEST, survival)

    def assign_rows(self, draft_ms: float = 0.0, max_tokens: int = LONGEST) -> Choice:
        """What control makes of the plan."""
        plan = self.plan
        for answer in plan.answers:
            answer.survival = answer.survival[:max_tokens]
        self.controller.assign_rows(plan)
        return Choice(lengths(plan), draft_ms, plan.num_padding)

    def after(self, slots: Sequence[Slot], milliseconds: float) -> None:
        """The step has been made."""
        plan = self.plan
        num_prompt_rows = 0
        if (step := plan.step) is not None:
            num_prompt_rows = step.num_base_rows - len(slots) - sum(step.again)
        record = make_record(plan, milliseconds, num_prompt_rows)
        for result, start, slot in zip(record.results, self._starts, slots, strict=True):
            result.emitted, sequence = tuple(range(start, slot.at)), result.sequence
            if slot.number != sequence.number or slot.at >= slot.length:
                self._running.discard(sequence.number)
                record.ended.append(make_end(sequence, self.simulation.answer))
        self.controller.read(record)


class AutoText(Learner):
    """What a scheduler does with control when drafts cost nothing."""

    def lengths(self, slots: Sequence[Slot]) -> Choice:
        self.begin(slots)
        self.offer_texts(slots)
        return self.assign_rows()
