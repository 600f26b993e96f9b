"""Users who come one after the other: they wait for a slot, read a prompt beside others' answers,
and see how long that took.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.lib.simulated_slots import CONTEXT, AutoText, Choice, Simulation, Slot
from benchmarks.lib.steps import decode

from headstart.control.controller import Controller

CHUNK, ALONE = 64, 512  # prompt rows of a step beside answers, and without any
LONG, SHORT = (50, 600), (5, 40)  # tokens of a prompt, from and to: of all, or of what is uncached
ANSWER = (20, 120)

Lengths = Callable[[Sequence[Slot]], Choice]


@dataclass
class Visit:
    """One user's request. Times in milliseconds."""

    slot: Slot
    pause: float  # since the visit before, or since that user's last one
    unread: int  # of its prompt
    arrival: float = 0.0
    first_token: float = 0.0
    end: float = 0.0


class ArrivalSimulation(Simulation):
    """Poisson arrivals at `load` of what the machine can do without drafts; or, with a load of 0,
    as many users as slots, who come back after a pause.

    On a processor, prompts and answers take turns if they are 64 rows or more, as in `Turns`.
    """

    def __init__(
        self,
        workload: str,
        curve: str,
        num_slots: int,
        *,
        load: float,
        prompt: tuple[int, int],
        count: int,
        seed: int = 1,
    ) -> None:
        super().__init__(workload, curve, num_slots, tokens=100, seed=seed)
        self.prompt_tokens, self.takes_turns, self._was_prompts = prompt, curve == "cpu", False
        self.count, self.load, self.interval = count, load, 0.0
        busy_ms = self.visit(no_drafts)["busy"] / count
        self.interval = busy_ms / load if load else busy_ms * num_slots / 2

    def visits(self) -> list[Visit]:
        rng, visits = random.Random(self.seed), list[Visit]()
        for number in range(self.count):
            pause = rng.expovariate(1.0) * self.interval
            answer = rng.randint(*ANSWER)
            text = self.make(self.kinds[number % self.num_slots], rng, answer + 40)
            slot = Slot(text, number, answer=10**6, length=answer)
            visits.append(Visit(slot, pause, rng.randint(*self.prompt_tokens)))
        return visits

    def under_control(self) -> dict[str, float]:
        """What users see with text speculators under control."""
        controller = Controller()
        self.warm_up(controller)
        policy = AutoText(self, controller)
        return self.visit(policy.lengths, policy)

    def visit(self, lengths: Lengths, learner: AutoText | None = None) -> dict[str, float]:
        """Serve all who come; returns the busy time, the median and the mean time to the first
        token, and the mean time to the end.
        """
        later, running, done = self.visits(), list[Visit](), list[Visit]()
        num_first = len(later) if self.load else self.num_slots
        coming, later, now, busy = later[:num_first], later[num_first:], 0.0, 0.0
        for visit in coming:
            now = visit.arrival = now + visit.pause
        noise, now = random.Random(self.seed), 0.0
        while coming or running:
            now, num_before = now if running else max(now, coming[0].arrival), len(running)
            while coming and len(running) < self.num_slots and coming[0].arrival <= now:
                running.append(coming.pop(0))
            answering = self._share(running)
            milliseconds = self._step(running, answering, lengths)
            now, busy = now + milliseconds, busy + milliseconds
            if learner is not None:
                num_new = len(running) - num_before if num_before else 0
                seen, slots = milliseconds * noise.uniform(0.9, 1.1), [v.slot for v in answering]
                if slots:
                    learner.plan.num_new = num_new
                    learner.after(slots, seen)
                else:
                    decode(learner.controller, self.num_prompt_rows, CONTEXT, seen, num_new)
            for visit in running:
                if not visit.unread and not visit.first_token:
                    visit.first_token = now
            for visit in answering:
                if visit.slot.at >= visit.slot.length:
                    visit.end = now
                    running.remove(visit)
                    done.append(visit)
                    if later:
                        later[0].arrival = now + later[0].pause
                        coming = sorted([*coming, later.pop(0)], key=lambda one: one.arrival)
        first = [visit.first_token - visit.arrival for visit in done]
        end = mean(visit.end - visit.arrival for visit in done)
        return {"busy": busy, "median first": median(first), "mean first": mean(first), "end": end}

    def _share(self, running: Sequence[Visit]) -> list[Visit]:
        """Set the prompt rows of the next step; returns who gets an answer's rows."""
        answering = [visit for visit in running if not visit.unread]
        num_unread = sum(visit.unread for visit in running)
        self.num_prompt_rows = min(num_unread, CHUNK if answering else ALONE)
        is_apart = self.takes_turns and num_unread and len(answering) + num_unread >= CHUNK
        self._was_prompts = bool(is_apart and answering) and not self._was_prompts
        if self._was_prompts:
            return []
        if is_apart and answering:
            self.num_prompt_rows = 0
        return answering

    def _step(
        self, running: Sequence[Visit], answering: Sequence[Visit], lengths: Lengths
    ) -> float:
        """One decode for all of them; returns what it took."""
        reading = [visit for visit in running if visit.unread]
        slots = [visit.slot for visit in answering]
        self.num_reading, left = len(reading), self.num_prompt_rows
        self.num_first = len(reading) if sum(v.unread for v in reading) <= left else 0
        choice = lengths(slots) if slots else Choice([])
        for visit in reading:
            num_read = min(left, visit.unread)
            visit.unread, left = visit.unread - num_read, left - num_read
        for slot, length in zip(slots, choice.lengths, strict=True):
            slot.at = min(slot.at + 1 + slot.run(length), slot.length)
        num_drafted = sum(choice.lengths) + choice.num_padding
        return self.cost(len(slots) + self.num_prompt_rows + num_drafted)


def no_drafts(slots: Sequence[Slot]) -> Choice:
    """Speculation is off."""
    return Choice([0] * len(slots))
