"""What control earns on synthetic texts: auto against off, every fixed length and two oracles.

A text is a list of flags: does the text go on as guessed at this place? A draft made at place t is
accepted up to the first place at or after t that does not. So all ways of drafting read the same
text, and hindsight is known. Times are simulated; control sees them with noise (10 %, and now and
then a step that takes three times as long), the scores are the times without it.

"Oracle" knows what will be accepted. "Reachable" knows the state the text is in, all chances and
the cost curve, but not the outcomes: nothing that only sees the past can be expected to beat it.
"Cold" starts knowing nothing; "warm" has seen another text of the kind on this machine.

    python -m benchmarks.control_simulation [--tokens 3000] [--growth 0] [--model]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product

from benchmarks.simulated_texts import CURVES, WORKLOADS, Kind, Place, make_model_text, make_text

from headstart.control import (
    Allowance,
    Controller,
    ModelDraftCall,
    ModelSlot,
    Outcome,
    SlotDraft,
    Step,
)

LONGEST = 16  # draft tokens that a speculator offers
FIXED_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
REQUEST_TOKENS = 400
CONTEXT, GROWN_CONTEXT = 500, 16384


@dataclass
class Slot:
    """One user: a stream of requests over one long text."""

    text: list[Place]
    first_id: int
    at: int = 0
    # place, scores, matched
    pending: list[tuple[int, list[float], int]] = field(default_factory=list)
    read: int = 0  # tokens that the draft model knows

    @property
    def seq_id(self) -> int:
        return self.first_id + self.at // REQUEST_TOKENS

    def run(self, longest: int = LONGEST) -> int:
        """Draft tokens that would be accepted here."""
        for i in range(longest):
            if not self.text[self.at + i].is_guessed:
                return i
        return longest

    @property
    def unread(self) -> int:
        """Tokens that the draft model has not read, the newest one not counted."""
        return max(0, self.at - max(self.read, self.at - self.at % REQUEST_TOKENS) - 1)

    def catch_up_to(self, drafted: int) -> None:
        """The draft model read the text and its own draft but the last token; what is right of that
        stays.
        """
        self.read = self.at + self.run(max(0, drafted - 1))


Lengths = Callable[[Sequence[Slot]], tuple[list[int], float]]
"""Draft tokens per slot and the milliseconds it took to draft them."""


@dataclass
class Score:
    """Tokens and milliseconds of one simulation."""

    tokens: int = 0
    milliseconds: float = 0.0

    @property
    def speed(self) -> float:
        return self.tokens / self.milliseconds


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
    ) -> None:
        self.curve = CURVES[curve]
        self.num_slots, self.tokens, self.seed, self.growth = num_slots, tokens, seed, growth
        self.kinds = [WORKLOADS[workload](slot) for slot in range(num_slots)]

    make = staticmethod(make_text)

    def context(self, slots: Sequence[Slot]) -> int:
        return CONTEXT + self.growth * sum(slot.at % REQUEST_TOKENS for slot in slots) // len(slots)

    def cost(self, rows: int, context: int = CONTEXT) -> float:
        return self.curve(rows) + self.curve(1) * rows * (context - CONTEXT) / GROWN_CONTEXT

    def slots(self) -> list[Slot]:
        slots = []
        for i, kind in enumerate(self.kinds):
            rng = random.Random(f"{self.seed}-{i}")
            text: list[Place] = []
            while len(text) < 3 * self.tokens * LONGEST // 8 + 2 * REQUEST_TOKENS:
                text += self.make(kind, rng, REQUEST_TOKENS)
            slots.append(Slot(text, i * 100000))
        return slots

    def run(
        self,
        lengths: Lengths,
        after: Callable[[Sequence[Slot], list[int], float], None] | None = None,
    ) -> Score:
        """Generate until every slot has emitted `tokens` on average."""
        noise, score, slots = random.Random(self.seed), Score(), self.slots()
        while score.tokens < self.tokens * self.num_slots:
            chosen, draft_ms = lengths(slots)
            milliseconds = self.cost(self.num_slots + sum(chosen), self.context(slots))
            seen = milliseconds * noise.uniform(0.9, 1.1) * (3.0 if noise.random() < 0.01 else 1.0)
            emitted = [1 + slot.run(n) for slot, n in zip(slots, chosen, strict=True)]
            score.tokens += sum(emitted)
            score.milliseconds += milliseconds + draft_ms
            for slot, n in zip(slots, emitted, strict=True):
                slot.at += n
            if after is not None:
                after(slots, chosen, seen)
        return score

    def off(self) -> Score:
        return self.run(lambda slots: ([0] * len(slots), 0.0))

    def fixed(self, length: int) -> Score:
        return self.run(
            lambda slots: ([length * slot.text[slot.at].has_draft for slot in slots], 0.0)
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

        def lengths(slots: Sequence[Slot]) -> tuple[list[int], float]:
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
            return chosen, 0.0

        for _ in range(3):
            score = self.run(lengths)
            speedup = score.speed / plain
        return score

    def auto(self, controller: Controller | None = None) -> Score:
        """Text speculators under control, with labels from drafts that were not verified."""
        policy = AutoText(self, controller or Controller())
        return self.run(policy.lengths, policy.after)


class AutoText:
    """What a scheduler does with control when drafts cost nothing."""

    def __init__(self, simulation: Simulation, controller: Controller) -> None:
        self.simulation, self.controller = simulation, controller
        self.context = CONTEXT

    def lengths(self, slots: Sequence[Slot]) -> tuple[list[int], float]:
        drafts = []
        for slot in slots:
            place = slot.text[slot.at]
            if not place.has_draft:
                drafts.append(SlotDraft())
                continue
            scores = [place.confidence] * LONGEST
            drafts.append(SlotDraft(self.controller.survival("text", scores, slot.seq_id)))
            slot.pending.append((slot.at, scores, slot.run()))
        self.context = self.simulation.context(slots)
        step = Step(len(slots), len(slots), self.context)
        return self.controller.plan(drafts, step), 0.0

    def after(self, slots: Sequence[Slot], chosen: Sequence[int], milliseconds: float) -> None:
        self.controller.observe_step(len(slots) + sum(chosen), self.context, milliseconds)
        for slot in slots:
            slot.pending = settle(self.controller, "text", slot)


def settle(
    controller: Controller, speculator: str, slot: Slot
) -> list[tuple[int, list[float], int]]:
    """Record the drafts whose fate is known; return the others."""
    waiting = []
    for at, scores, matched in slot.pending:
        if slot.at < at + min(matched + 1, len(scores)):
            waiting.append((at, scores, matched))
            continue
        labelled = min(matched + 1, len(scores))
        controller.record(
            Outcome(slot.first_id + at // REQUEST_TOKENS, speculator, scores, matched, labelled)
        )
    return waiting


@dataclass(frozen=True)
class DraftModel:
    """What a draft model costs: milliseconds per round, by plain steps of one row, and per token
    read.
    """

    round_share: float = 0.12
    read_share: float = 0.01


class ModelSimulation(Simulation):
    """The same with a draft model: its rounds cost time, and undrafted tokens have no label."""

    make = staticmethod(make_model_text)
    model = DraftModel()

    def draft_ms(
        self, allowances: Sequence[Allowance], scores: Sequence[Sequence[float]], read: int
    ) -> float:
        rounds = max(
            (min(g.max_tokens, len(s) + 1) for g, s in zip(allowances, scores, strict=True)),
            default=0,
        )
        busy = sum(g.max_tokens > 0 for g in allowances)
        share = rounds * self.model.round_share * (1 + 0.08 * busy) + read * self.model.read_share
        return share * self.cost(1)

    def fixed_model(self, length: int, min_confidence: float) -> Score:
        allowance = Allowance(length, min_confidence)

        def lengths(slots: Sequence[Slot]) -> tuple[list[int], float]:
            scores, read = (
                [draft_scores(slot, allowance) for slot in slots],
                sum(slot.unread for slot in slots),
            )
            for slot, s in zip(slots, scores, strict=True):
                slot.catch_up_to(len(s))
            return [len(s) for s in scores], self.draft_ms([allowance] * len(slots), scores, read)

        return self.run(lengths)

    def auto(self, controller: Controller | None = None) -> Score:
        policy = AutoModel(self, controller or Controller())
        return self.run(policy.lengths, policy.after)


def draft_scores(slot: Slot, allowance: Allowance) -> list[float]:
    """Scores of what the model drafts: up to the first one below the limit, or past its first
    mistake.

    After a mistake the model goes on in a text of its own; the scores there are of places here.
    """
    scores: list[float] = []
    for place in slot.text[slot.at : slot.at + allowance.max_tokens]:
        if place.confidence < allowance.min_confidence:
            break
        scores.append(place.confidence)
    return scores


class AutoModel:
    """What a scheduler does with control and a draft model."""

    def __init__(self, simulation: ModelSimulation, controller: Controller) -> None:
        self.simulation, self.controller = simulation, controller
        self.context = CONTEXT
        controller.declare_model("model")

    def lengths(self, slots: Sequence[Slot]) -> tuple[list[int], float]:
        self.context = self.simulation.context(slots)
        step = Step(len(slots), len(slots), self.context)
        wanted = [ModelSlot(slot.seq_id, LONGEST, slot.unread) for slot in slots]
        allowed = self.controller.plan_model("model", wanted, step)
        scores = [
            draft_scores(slot, allowance) for slot, allowance in zip(slots, allowed, strict=True)
        ]
        forced = [i for i, allowance in enumerate(allowed) if allowance.max_tokens]
        read = sum(wanted[i].catch_up for i in forced)
        for i in forced:
            slots[i].catch_up_to(len(scores[i]))
            if scores[i]:
                slots[i].pending.append((slots[i].at, scores[i], slots[i].run(len(scores[i]))))
        milliseconds = self.simulation.draft_ms(allowed, scores, read)
        if forced:
            seq_ids, allowances = [slots[i].seq_id for i in forced], [allowed[i] for i in forced]
            run = ModelDraftCall(
                "model", seq_ids, allowances, [scores[i] for i in forced], read, milliseconds
            )
            self.controller.observe_draft(run, step)
        drafts = [
            SlotDraft(self.controller.survival("model", s, slot.seq_id) if s else ())
            for slot, s in zip(slots, scores, strict=True)
        ]
        return self.controller.plan(drafts, step, milliseconds), milliseconds

    def after(self, slots: Sequence[Slot], chosen: Sequence[int], milliseconds: float) -> None:
        self.controller.observe_step(len(slots) + sum(chosen), self.context, milliseconds)
        for slot in slots:
            slot.pending = settle(self.controller, "model", slot)


@dataclass(frozen=True)
class Line:
    """One case of a table: tokens a second by policy, and the best setting by hand."""

    name: str
    setting: str
    speeds: dict[str, float]

    def __str__(self) -> str:
        speeds = self.speeds
        ratios = [(a, b) for a in ("cold", "warm") for b in speeds if b not in ("cold", "warm")]
        numbers = "".join(f"{speed:8.1f}" for speed in speeds.values())
        return f"{self.name:18}{numbers}{self.setting:>8}  " + "".join(
            f"{speeds[a] / speeds[b]:6.2f}" for a, b in ratios
        )


def measure(simulation: Simulation, name: str, fixed: dict[str, float]) -> Line:
    """Off, best by hand, auto without and with experience."""
    best = max(fixed, key=lambda k: fixed[k])
    experienced, seed = Controller(), simulation.seed
    simulation.seed += 1000
    simulation.auto(experienced)
    simulation.seed = seed
    speeds = {
        "off": simulation.off().speed,
        "fixed": fixed[best],
        "cold": simulation.auto().speed,
        "warm": simulation.auto(experienced).speed,
    }
    if not isinstance(simulation, ModelSimulation):
        speeds |= {"reachable": simulation.reachable().speed, "oracle": simulation.oracle().speed}
    return Line(name, best, {policy: 1000 * speed for policy, speed in speeds.items()})


def table(tokens: int, seed: int, growth: int, *, has_model: bool) -> Iterator[Line]:
    """Every machine, text and number of slots."""
    for curve, workload, num_slots in product(CURVES, WORKLOADS, (1, 4, 8)):
        kind = ModelSimulation if has_model else Simulation
        run = kind(
            workload, curve, num_slots, tokens=tokens // num_slots + 400, seed=seed, growth=growth
        )
        if isinstance(run, ModelSimulation):
            settings = product(FIXED_LENGTHS[:7], (0.0, 0.3, 0.5, 0.7))
            fixed = {f"{k}/{p:g}": run.fixed_model(k, p).speed for k, p in settings}
        else:
            fixed = {str(k): run.fixed(k).speed for k in FIXED_LENGTHS}
        yield measure(run, f"{curve:4} {workload:9} {num_slots}", fixed)


def main() -> None:
    """Print the table that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--growth", type=int, default=0, help="context tokens per token of text; 0: constant"
    )
    parser.add_argument(
        "--model", action="store_true", help="with a draft model instead of a text speculator"
    )
    args = parser.parse_args()
    lines = []
    for line in table(args.tokens, args.seed, args.growth, has_model=args.model):
        if not lines:
            print(
                f"tokens a second: {', '.join(line.speeds)}; best setting by hand; cold and then "
                "warm by the others"
            )
        lines.append(line)
        print(line, flush=True)
    for policy in ("cold", "warm"):
        for other in (other for other in lines[0].speeds if other not in ("cold", "warm")):
            shares = [line.speeds[policy] / line.speeds[other] for line in lines]
            print(
                f"{policy} / {other}: average {sum(shares) / len(shares):.3f}, least "
                f"{min(shares):.3f}"
            )


if __name__ == "__main__":
    main()
