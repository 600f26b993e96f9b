"""Simulated draft models: their rounds cost time, and they have to read what they continue."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.lib.simulated_slots import (
    LONGEST,
    AutoText,
    Choice,
    Learner,
    Score,
    Simulation,
    Slot,
    places,
)
from benchmarks.lib.simulated_texts import Kind, make_model_text, make_text

from headstart.control.controller import Controller
from headstart.control.values import AskedAnswer, DraftCall
from headstart.scheduler.step import Offer, SequencePlan
from headstart.structures.prefix import common_prefix_length
from headstart.types import NO_DRAFT, Draft

READ_A_CALL = 256  # tokens that a draft model reads in one call, as DraftModelSpeculator


class ModelSimulation(Simulation):
    """The same with a draft model: its rounds cost time, and undrafted tokens have no label."""

    make = staticmethod(make_model_text)
    # plain steps of one row that a round takes, and that a token takes to be read
    round_share, read_share = 0.12, 0.01

    def draft_ms(
        self, granted: Sequence[int], scores: Sequence[Sequence[float]], read: int
    ) -> float:
        """granted: the longest draft of each slot; scores: of what it drafted."""
        rounds = max(
            (min(most, len(s) + 1) for most, s in zip(granted, scores, strict=True)), default=0
        )
        busy = sum(most > 0 for most in granted)
        share = rounds * self.round_share * (1 + 0.08 * busy) + read * self.read_share
        return share * self.cost(1)

    def fixed_model(self, length: int, min_confidence: float) -> Score:
        def lengths(slots: Sequence[Slot]) -> Choice:
            read = read_prompts(slots)
            granted = [0 if slot.unread else length for slot in slots]
            scores = [
                draft_scores(slot, most, min_confidence)
                for slot, most in zip(slots, granted, strict=True)
            ]
            for slot, s, most in zip(slots, scores, granted, strict=True):
                if most:
                    slot.catch_up_to(len(s))
            return Choice([len(s) for s in scores], self.draft_ms(granted, scores, read))

        return self.run(lengths)

    def auto(self, controller: Controller | None = None, num_uncounted: int = 0) -> Score:
        policy = AutoModel(self, controller or Controller())
        return self.run(policy.lengths, policy.after, num_uncounted)


def read_prompts(slots: Sequence[Slot]) -> int:
    """A call of the draft model reads what these slots lack, the shortest first, READ_A_CALL tokens
    at most; returns how many.
    """
    room = READ_A_CALL
    for slot in sorted(slots, key=lambda slot: slot.unread):
        room -= slot.read_on(room)
    return READ_A_CALL - room


def draft_scores(slot: Slot, max_tokens: int, min_confidence: float) -> list[float]:
    """Scores of what the model drafts: up to the first one below the limit, or past its first
    mistake.

    After a mistake the model goes on in a text of its own; the scores there are of places here.
    """
    scores: list[float] = []
    guesses = slot.text if slot.guesses is None else slot.guesses
    for place in guesses[slot.at : slot.at + max_tokens]:
        if place.confidence < min_confidence:
            break
        scores.append(place.confidence)
    return scores


class AutoModel(Learner):
    """What a scheduler does with control and a draft model, behind a text speculator or alone."""

    def __init__(
        self, simulation: ModelSimulation, controller: Controller, *, has_texts: bool = False
    ) -> None:
        super().__init__(simulation, controller)
        self.simulation: ModelSimulation = simulation
        self.has_texts = has_texts
        self.num_drafts = 0
        controller.trust_scores("model")
        plain = simulation.cost(1)
        round_ms, read_ms = simulation.round_share * plain, simulation.read_share * plain
        controller.learn_draft_costs("model", round_ms, read_ms)

    def lengths(self, slots: Sequence[Slot]) -> Choice:
        plan, milliseconds = self.begin(slots), 0.0
        if self.has_texts:
            self.offer_texts(slots)
        if not self.controller.begin_model_step("model"):
            milliseconds = self.ask(slots)
        choice = self.assign_rows(milliseconds)
        drafts = zip(slots, plan.answers, choice.lengths, strict=True)
        return choice._replace(
            num_right=[
                common_prefix_length(answer.draft[:length], range(slot.at, slot.at + length))
                for slot, answer, length in drafts
            ]
        )

    def ask(self, slots: Sequence[Slot]) -> float:
        """Let the model draft as far as control allows; returns the milliseconds it took."""
        plan, answers = self.plan, self.plan.answers
        assert plan.step is not None
        own = [
            AskedAnswer(
                answer,
                LONGEST,
                NO_DRAFT,
                catch_up=slot.unread,
                num_answered=slot.num_answered,
                to_beat=sum(answer.survival),
            )
            for slot, answer in zip(slots, answers, strict=True)
        ]
        self.controller.grant({"model": own}, plan.step)
        asked = [i for i, one in enumerate(own) if one.num_granted]
        num_read = read_prompts([slots[i] for i in asked])
        drafting = [i for i in asked if not slots[i].unread]
        granted = [
            0 if slot.unread else one.num_granted for slot, one in zip(slots, own, strict=True)
        ]
        scores = [
            draft_scores(slot, most, one.min_confidence)
            for slot, most, one in zip(slots, granted, own, strict=True)
        ]
        milliseconds = self.simulation.draft_ms(granted, scores, num_read)
        self.num_drafts += len(drafting)
        if asked:
            for i in asked:
                is_ready = not slots[i].unread
                own[i].draft = Draft([0] * len(scores[i]), scores[i], "model", is_ready=is_ready)
            called = [own[i] for i in asked]
            call = DraftCall("model", called, milliseconds, is_model=True, catch_up=num_read)
            plan.calls.append(call)
        for i in drafting:
            slots[i].catch_up_to(len(scores[i]))
            if scores[i]:
                self.offer_model(answers[i], slots[i], scores[i])
        return milliseconds

    def offer_model(self, answer: SequencePlan, slot: Slot, scores: list[float]) -> None:
        """Instead of the text's draft if it is worth more."""
        num = len(scores)
        tokens = places(slot.at, slot.run_model(num), num)
        answer.offers.append(Offer(Draft(tokens, scores, "model"), [], []))
        survival = self.controller.survival("model", scores, slot.number)
        if sum(survival) > sum(answer.survival):
            answer.take(tokens, ["model"] * num, survival)


class BothSimulation(ModelSimulation):
    """A text speculator, and a draft model that is right with a chance of `guessed` whatever the
    text's state.

    disturbance: plain steps that a step takes longer after the model has run: it shares cores,
    caches and graphs with the target, and its own time says nothing of that.
    """

    make = staticmethod(make_text)
    guessed, disturbance = 0.5, 0.0

    def slots(self) -> list[Slot]:
        slots, rng = super().slots(), random.Random(f"{self.seed}-model")
        kind = Kind(halves=(self.guessed, self.guessed))
        for slot in slots:
            slot.guesses = make_model_text(kind, rng, len(slot.text))
        return slots

    def with_both(self, controller: Controller) -> Score:
        """Both under control."""
        policy = AutoModel(self, controller, has_texts=True)

        def lengths(slots: Sequence[Slot]) -> Choice:
            choice = policy.lengths(slots)
            has_run = any(call.is_model for call in policy.plan.calls)
            self.disturbed_ms = self.disturbance * self.cost(1) if has_run else 0.0
            return choice

        return self.run(lengths, policy.after)

    def with_text(self, controller: Controller) -> Score:
        """The text speculator alone, under control."""
        self.disturbed_ms, policy = 0.0, AutoText(self, controller)
        return self.run(policy.lengths, policy.after)
