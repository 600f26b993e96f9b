"""What control earns on synthetic texts: auto against off, every fixed length and hindsight.

A text is a list of flags: does the text go on as guessed at this place? A draft made at place t is
accepted up to the first place at or after t that does not. So all ways of drafting read the same
text, and hindsight is known. Times are simulated; control sees them with noise (10 %, and now and
then a step that takes three times as long), the scores are the times without it.

    python benchmarks/control_simulation.py [--tokens 3000] [--model]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headstart.control import Allowance, Controller, DraftRun, ModelSlot, Outcome, SlotDraft, Step

LONGEST = 16  # draft tokens that a speculator offers
FIXED_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
REQUEST_TOKENS = 400
CONTEXT = 500

Curve = Callable[[int], float]


def piecewise(*points: tuple[int, float]) -> Curve:
    """Linear between (rows, ms) points, and beyond the last two."""

    def cost(rows: int) -> float:
        right = next((i for i, (x, _) in enumerate(points) if x >= rows), len(points) - 1)
        (x0, y0), (x1, y1) = points[max(0, right - 1)], points[max(1, right)]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)

    return cost


CURVES: dict[str, Curve] = {
    "cpu": piecewise((1, 49), (2, 70), (4, 113), (8, 180), (16, 300), (32, 637), (64, 1200)),
    "gpu": piecewise((1, 10), (8, 10.8), (12, 11.4), (13, 17), (16, 17.5), (32, 19), (33, 26), (64, 30)),
    "moe": piecewise((1, 20), (2, 29), (4, 41), (8, 57), (16, 76), (32, 98), (64, 130)),
}


@dataclass(frozen=True)
class Place:
    """One token of a text: does the speculator guess it, how sure is it, does it draft here at all?"""

    is_guessed: bool
    confidence: float
    has_draft: bool


@dataclass(frozen=True)
class Kind:
    """A text in two states, copying and not: chance to be guessed in each, and to change the state."""

    copied: float = 0.95
    novel: float = 0.1
    leave: float = 0.03
    enter: float = 0.05
    drafts_novel: float = 0.5  # share of novel places where a (mostly wrong) draft is offered
    halves: tuple[float, float] | None = None  # instead: acceptance of each half, same scores


def make_text(kind: Kind, rng: random.Random, length: int) -> list[Place]:
    """A text with match lengths as scores: places guessed in a row before, plus noise."""
    places, run, copying = [], rng.randint(1, 4), rng.random() < 0.5
    for i in range(length):
        copying = rng.random() >= kind.leave if copying else rng.random() < kind.enter
        chance = kind.copied if copying else kind.novel
        has_draft = copying or rng.random() < kind.drafts_novel
        score = float(max(1, min(64, run)))
        if kind.halves is not None:
            chance, has_draft, score = kind.halves[2 * i // length], True, float(rng.randint(2, 8))
        is_guessed = rng.random() < chance
        places.append(Place(is_guessed, score, has_draft))
        run = run + 1 if is_guessed else rng.randint(0, 3)
    return places


def make_model_text(kind: Kind, rng: random.Random, length: int) -> list[Place]:
    """A text with probabilities as scores, as a draft model gives them: informative, a little too sure."""
    places, copying = [], rng.random() < 0.5
    for i in range(length):
        copying = rng.random() >= kind.leave if copying else rng.random() < kind.enter
        chance = kind.copied if copying else kind.novel
        if kind.halves is not None:
            chance = kind.halves[2 * i // length]
        sharp = rng.betavariate(6 * chance + 0.05, 6 * (1 - chance) + 0.05)
        places.append(Place(rng.random() < sharp, min(0.999, sharp**0.8), has_draft=True))
    return places


WORKLOADS: dict[str, Callable[[int], Kind]] = {
    "mixed": lambda _: Kind(),
    "edit": lambda _: Kind(copied=0.97, leave=0.02, enter=0.2),
    "nothing": lambda _: Kind(copied=0.03, novel=0.02, drafts_novel=1.0),
    "low": lambda _: Kind(halves=(0.4, 0.4)),
    "medium": lambda _: Kind(halves=(0.7, 0.7)),
    "halves": lambda _: Kind(halves=(0.95, 0.05)),
    "per-slot": lambda slot: Kind(halves=((0.96, 0.05, 0.6, 0.3)[slot % 4],) * 2),
    "looping": lambda _: Kind(halves=(0.995, 0.995)),
}


@dataclass
class Slot:
    """One user: a stream of requests over one long text."""

    text: list[Place]
    first_id: int
    at: int = 0
    pending: list[tuple[int, list[float], int]] = field(default_factory=list)  # place, scores, matched
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
        """The draft model read the text and its own draft but the last token; what is right of that stays."""
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
    """One workload on one machine. Every policy sees the same texts and noise."""

    def __init__(self, workload: str, curve: str, num_slots: int, *, tokens: int = 3000, seed: int = 1) -> None:
        self.cost = CURVES[curve]
        self.num_slots, self.tokens, self.seed = num_slots, tokens, seed
        self.kinds = [WORKLOADS[workload](slot) for slot in range(num_slots)]

    make = staticmethod(make_text)

    def slots(self) -> list[Slot]:
        slots = []
        for i, kind in enumerate(self.kinds):
            rng = random.Random(f"{self.seed}-{i}")
            text: list[Place] = []
            while len(text) < 3 * self.tokens * LONGEST // 8 + 2 * REQUEST_TOKENS:
                text += self.make(kind, rng, REQUEST_TOKENS)
            slots.append(Slot(text, i * 100000))
        return slots

    def run(self, lengths: Lengths, after: Callable[[Sequence[Slot], list[int], float], None] | None = None) -> Score:
        """Generate until every slot has emitted `tokens` on average."""
        noise, score, slots = random.Random(self.seed), Score(), self.slots()
        while score.tokens < self.tokens * self.num_slots:
            chosen, draft_ms = lengths(slots)
            rows = self.num_slots + sum(chosen)
            milliseconds = self.cost(rows)
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
        return self.run(lambda slots: ([length * slot.text[slot.at].has_draft for slot in slots], 0.0))

    def oracle(self) -> Score:
        """Lengths in hindsight: only tokens that will be accepted, as many as pay at the best rate."""
        rate, score = self.num_slots / self.cost(self.num_slots), Score()
        for _ in range(3):
            score = self.run(lambda slots, rate=rate: (self._hindsight(slots, rate), 0.0))  # type: ignore[misc]
            rate = score.speed
        return score

    def _hindsight(self, slots: Sequence[Slot], rate: float) -> list[int]:
        runs = [slot.run() if slot.text[slot.at].has_draft else 0 for slot in slots]
        base = len(slots)
        best = max(range(sum(runs) + 1), key=lambda rows: rows - rate * self.cost(base + rows))
        lengths = []
        for run in runs:
            lengths.append(min(run, best))
            best -= lengths[-1]
        return lengths

    def auto(self, controller: Controller | None = None) -> Score:
        """Text speculators under control, with labels from drafts that were not verified."""
        policy = AutoText(controller or Controller())
        return self.run(policy.lengths, policy.after)


class AutoText:
    """What a scheduler does with control when drafts cost nothing."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

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
        step = Step(len(slots), len(slots), CONTEXT)
        return self.controller.plan(drafts, step), 0.0

    def after(self, slots: Sequence[Slot], chosen: Sequence[int], milliseconds: float) -> None:
        self.controller.observe_step(len(slots) + sum(chosen), CONTEXT, milliseconds)
        for slot in slots:
            slot.pending = settle(self.controller, "text", slot)


def settle(controller: Controller, speculator: str, slot: Slot) -> list[tuple[int, list[float], int]]:
    """Record the drafts whose fate is known; return the others."""
    waiting = []
    for at, scores, matched in slot.pending:
        if slot.at < at + min(matched + 1, len(scores)):
            waiting.append((at, scores, matched))
            continue
        labelled = min(matched + 1, len(scores))
        controller.record(Outcome(slot.first_id + at // REQUEST_TOKENS, speculator, scores, matched, labelled))
    return waiting


@dataclass(frozen=True)
class DraftModel:
    """What a draft model costs: milliseconds per round, by plain steps of one row, and per token read."""

    round_share: float = 0.12
    read_share: float = 0.01


class ModelSimulation(Simulation):
    """The same with a draft model: its rounds cost time, and what it does not draft has no label."""

    make = staticmethod(make_model_text)
    model = DraftModel()

    def draft_ms(self, grants: Sequence[Allowance], scores: Sequence[Sequence[float]], read: int) -> float:
        rounds = max((min(g.max_tokens, len(s) + 1) for g, s in zip(grants, scores, strict=True)), default=0)
        busy = sum(g.max_tokens > 0 for g in grants)
        share = rounds * self.model.round_share * (1 + 0.08 * busy) + read * self.model.read_share
        return share * self.cost(1)

    def fixed_model(self, length: int, min_confidence: float) -> Score:
        grant = Allowance(length, min_confidence)

        def lengths(slots: Sequence[Slot]) -> tuple[list[int], float]:
            scores, read = [draft_scores(slot, grant) for slot in slots], sum(slot.unread for slot in slots)
            for slot, s in zip(slots, scores, strict=True):
                slot.catch_up_to(len(s))
            return [len(s) for s in scores], self.draft_ms([grant] * len(slots), scores, read)

        return self.run(lengths)

    def auto(self, controller: Controller | None = None) -> Score:
        policy = AutoModel(self, controller or Controller())
        return self.run(policy.lengths, policy.after)


def draft_scores(slot: Slot, grant: Allowance) -> list[float]:
    """Scores of what the model drafts: up to the first one below the limit, or past its first mistake.

    After a mistake the model goes on in a text of its own; the scores there are of places here.
    """
    scores: list[float] = []
    for place in slot.text[slot.at : slot.at + grant.max_tokens]:
        if place.confidence < grant.min_confidence:
            break
        scores.append(place.confidence)
    return scores


class AutoModel:
    """What a scheduler does with control and a draft model."""

    def __init__(self, simulation: ModelSimulation, controller: Controller) -> None:
        self.simulation, self.controller = simulation, controller
        controller.declare_model("model")

    def lengths(self, slots: Sequence[Slot]) -> tuple[list[int], float]:
        step = Step(len(slots), len(slots), CONTEXT)
        wanted = [ModelSlot(slot.seq_id, LONGEST, slot.unread) for slot in slots]
        allowed = self.controller.plan_model("model", wanted, step)
        scores = [draft_scores(slot, allowance) for slot, allowance in zip(slots, allowed, strict=True)]
        granted = [i for i, allowance in enumerate(allowed) if allowance.max_tokens]
        read = sum(wanted[i].catch_up for i in granted)
        for i in granted:
            slots[i].catch_up_to(len(scores[i]))
            if scores[i]:
                slots[i].pending.append((slots[i].at, scores[i], slots[i].run(len(scores[i]))))
        milliseconds = self.simulation.draft_ms(allowed, scores, read)
        if granted:
            seq_ids, grants = [slots[i].seq_id for i in granted], [allowed[i] for i in granted]
            run = DraftRun("model", seq_ids, grants, [scores[i] for i in granted], read, milliseconds)
            self.controller.observe_draft(run, step)
        drafts = [
            SlotDraft(self.controller.survival("model", s, slot.seq_id) if s else ())
            for slot, s in zip(slots, scores, strict=True)
        ]
        return self.controller.plan(drafts, step, milliseconds), milliseconds

    def after(self, slots: Sequence[Slot], chosen: Sequence[int], milliseconds: float) -> None:
        self.controller.observe_step(len(slots) + sum(chosen), CONTEXT, milliseconds)
        for slot in slots:
            slot.pending = settle(self.controller, "model", slot)


def text_table(tokens: int, seed: int = 1) -> list[tuple[str, float, float, float, int, float]]:
    """Rows of (name, off, best fixed, auto, best length, oracle) in tokens a second."""
    table = []
    for curve in CURVES:
        for workload in WORKLOADS:
            for num_slots in (1, 4, 8):
                simulation = Simulation(workload, curve, num_slots, tokens=tokens // num_slots + 400, seed=seed)
                fixed = {k: simulation.fixed(k).speed for k in FIXED_LENGTHS}
                best = max(fixed, key=lambda k: fixed[k])
                speeds = (simulation.off().speed, fixed[best], simulation.auto().speed)
                off, top, auto = (1000 * s for s in speeds)
                table.append(
                    (f"{curve:4} {workload:9} {num_slots}", off, top, auto, best, 1000 * simulation.oracle().speed)
                )
    return table


def model_table(tokens: int, seed: int = 1) -> list[tuple[str, float, float, float, str]]:
    """Rows of (name, off, best fixed, auto, best setting) in tokens a second, with a draft model."""
    table = []
    for curve in CURVES:
        for workload in WORKLOADS:
            for num_slots in (1, 4, 8):
                simulation = ModelSimulation(workload, curve, num_slots, tokens=tokens // num_slots + 400, seed=seed)
                fixed = {
                    f"{k}/{p:g}": simulation.fixed_model(k, p).speed
                    for k in FIXED_LENGTHS[:7]
                    for p in (0.0, 0.3, 0.5, 0.7)
                }
                best = max(fixed, key=lambda k: fixed[k])
                off, auto = simulation.off().speed, simulation.auto().speed
                table.append((f"{curve:4} {workload:9} {num_slots}", 1000 * off, 1000 * fixed[best], 1000 * auto, best))
    return table


def main() -> None:
    """Print the table that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", action="store_true", help="with a draft model instead of a text speculator")
    args = parser.parse_args()
    if args.model:
        print("machine text slots   off tok/s  best fixed  (length/p_min)   auto  auto/off  auto/fixed")
        for name, off, fixed, auto, best in model_table(args.tokens, args.seed):
            print(f"{name:18} {off:8.1f} {fixed:10.1f}  {best:>8} {auto:10.1f} {auto / off:8.2f} {auto / fixed:8.2f}")
        return
    print("machine text slots   off tok/s  best fixed  (length)   auto  oracle  auto/off  auto/fixed  auto/oracle")
    shares = []
    for name, off, fixed, auto, length, oracle in text_table(args.tokens, args.seed):
        shares.append(auto / oracle)
        ratios = f"{auto / off:8.2f} {auto / fixed:8.2f} {auto / oracle:8.2f}"
        print(f"{name:18} {off:8.1f} {fixed:10.1f} {length:6} {auto:10.1f} {oracle:8.1f} {ratios}")
    print(f"auto / oracle on average: {sum(shares) / len(shares):.3f}")


if __name__ == "__main__":
    main()
