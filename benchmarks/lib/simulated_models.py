"""Simulated draft models: their rounds cost time, and they have to read what they continue."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.lib.simulated_slots import (
    LONGEST,
    Choice,
    Learner,
    Score,
    Simulation,
    Slot,
)
from benchmarks.lib.simulated_texts import make_model_text

from headstart.control import Allowance, Controller, ModelDraftCall, ModelSlot
from headstart.control.values import NO_ALLOWANCE, with_gap
from headstart.scheduler.step import DraftCall

READ_A_CALL = 256  # tokens that a draft model reads in one call, as DraftModelSpeculator


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
    local_share = 1.0  # of its guesses that it makes as well without the middle of the text

    def slots(self) -> list[Slot]:
        slots, rng = super().slots(), random.Random(self.seed)
        if self.local_share < 1.0:
            for slot in slots:
                local = [rng.random() < self.local_share for _ in slot.text]
                slot.text = [
                    replace(place, is_local=is_local)
                    for place, is_local in zip(slot.text, local, strict=True)
                ]
        return slots

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

        def lengths(slots: Sequence[Slot]) -> Choice:
            read = read_prompts(slots)
            ready = [not slot.unread for slot in slots]
            allowances = [allowance if is_ready else NO_ALLOWANCE for is_ready in ready]
            scores = [draft_scores(*pair) for pair in zip(slots, allowances, strict=True)]
            for slot, s, is_ready in zip(slots, scores, ready, strict=True):
                if is_ready:
                    slot.catch_up_to(len(s))
            return Choice([len(s) for s in scores], self.draft_ms(allowances, scores, read))

        return self.run(lengths)

    def auto(self, controller: Controller | None = None) -> Score:
        policy = AutoModel(self, controller or Controller())
        return self.run(policy.lengths, policy.after)


def read_prompts(slots: Sequence[Slot]) -> int:
    """A call of the draft model reads what these slots lack, the shortest first, READ_A_CALL tokens
    at most; returns how many.
    """
    room = READ_A_CALL
    for slot in sorted(slots, key=lambda slot: slot.unread):
        room -= slot.read_on(room)
    return READ_A_CALL - room


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


class AutoModel(Learner):
    """What a scheduler does with control and a draft model."""

    def __init__(self, simulation: ModelSimulation, controller: Controller) -> None:
        super().__init__(simulation, controller)
        self.simulation: ModelSimulation = simulation
        self.num_drafts = 0
        controller.trust_scores("model")
        controller.trust_scores(with_gap("model"))
        plain, model = simulation.cost(1), simulation.model
        controller.learn_draft_costs("model", model.round_share * plain, model.read_share * plain)

    def lengths(self, slots: Sequence[Slot]) -> Choice:
        plan = self.begin(slots)
        if not self.controller.wants("model"):
            return self.share()
        plan.wishes["model"] = [
            ModelSlot(
                slot.number,
                LONGEST,
                slot.catch_up,
                recent=min(slot.unread, READ_A_CALL),
            )
            for slot in slots
        ]
        allowed = list(self.controller.grant(plan)["model"])
        asked = [i for i, allowance in enumerate(allowed) if allowance.max_tokens]
        for i in asked:
            if allowed[i].can_skip:
                slots[i].skip(READ_A_CALL)
            else:
                slots[i].close_gap()
        num_read = read_prompts([slots[i] for i in asked])
        drafting = [i for i in asked if not slots[i].unread]
        names = [with_gap("model") if allowance.can_skip else "model" for allowance in allowed]
        is_probe = any(allowed[i].is_probe for i in asked)
        for i in asked:
            if slots[i].unread:
                allowed[i] = NO_ALLOWANCE
        scores = [
            draft_scores(slot, allowance) for slot, allowance in zip(slots, allowed, strict=True)
        ]
        milliseconds = self.simulation.draft_ms(allowed, scores, num_read)
        self.num_drafts += len(drafting)
        if asked:
            run = ModelDraftCall(
                "model",
                [slots[i].number for i in drafting],
                [allowed[i] for i in drafting],
                [scores[i] for i in drafting],
                num_read,
                milliseconds,
                is_probe=is_probe,
            )
            plan.calls.append(DraftCall("model", drafting, [], milliseconds, True, run))
        for i in drafting:
            slots[i].catch_up_to(len(scores[i]))
            if scores[i]:
                self.offer(i, slots[i], scores[i], names[i])
        return self.share(milliseconds)
