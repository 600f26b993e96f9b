"""Whether and how far a draft model drafts: its time has to be earned before it is spent.

All slots draft together. Of all numbers of slots, lengths and confidence limits, those are chosen
that are worth most (`model_length`), nothing if none is worth its time. Only the limits next to the
last one chosen are tried.

A small share of the time pays for drafts that are not expected to pay (`probes`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from headstart.control.budget import Budget
from headstart.control.calibration import Calibration
from headstart.control.cost import CostTable
from headstart.control.draft_cost import DraftCost
from headstart.control.forecast import LENGTHS, THRESHOLDS
from headstart.control.model_length import NO_DECISION, Decision, Price, better
from headstart.control.model_state import ModelState
from headstart.control.probes import PROBE_TOKENS, ProbeSlot
from headstart.control.values import (
    GAP,
    NO_ALLOWANCE,
    Allowance,
    DraftCall,
    ModelSlot,
    Step,
    with_gap,
)

NEW, NEW_READS = 8.0, 0.25  # labels of a model that is new; plain steps that it may read for
REST, REST_AFTER = 3, 16  # steps in which a model is not planned for that did not pay so often


class ModelDraftPlanner:
    """Prices draft models and grants them tokens."""

    SAVED: ClassVar = ("drafters",)

    def __init__(self, cost: CostTable, budget: Budget, calibration: Calibration) -> None:
        self._cost, self._budget, self._calibration = cost, budget, calibration
        self.drafters: defaultdict[str, ModelState] = defaultdict(ModelState)  # by speculator
        self._answer = 128.0  # tokens of one on average

    def plan(self, speculator: str, slots: Sequence[ModelSlot], step: Step) -> list[Allowance]:
        """How far the model may draft for each slot, before it runs. O(slots * lengths)."""
        drafter = self.drafters[speculator]
        fixed = [slot.fixed_confidence is not None for slot in slots]
        auto = [i for i, is_fixed in enumerate(fixed) if not is_fixed and slots[i].max_tokens > 0]
        allowances = [
            Allowance(slot.max_tokens, slot.fixed_confidence)
            if slot.fixed_confidence is not None
            else NO_ALLOWANCE
            for slot in slots
        ]
        if not auto:
            return allowances
        self._save(speculator, 1)
        num_labels = map(self._calibration.num_labels, (speculator, with_gap(speculator)))
        if sum(num_labels) < NEW:  # it does not read everybody's prompt
            plain = self._budget.plain_ms(step)
            most = NEW_READS * plain / drafter.cost.token(plain)
            first = min(auto, key=lambda i: slots[i].catch_up)
            auto = [i for i in auto if i == first or slots[i].catch_up <= most]
        asking = [slots[i] for i in auto]
        choice, gapped = NO_DECISION, self._state(speculator, can_skip=True)
        if not drafter.probes.is_closed:
            choice = self._best(speculator, asking, step)
        if not gapped.probes.is_closed and any(slot.can_skip for slot in asking):
            skipping = self._best(speculator, asking, step, can_skip=True)
            if skipping.value > choice.value:
                choice = skipping
        drafter.gain = choice.value / max(1, len(choice.slots))
        if choice.slots:
            drafter.probes.reading = None
            drafter.num_refused, drafter.limit = 0, choice.limit
            for j in choice.slots:
                slot, can_skip = asking[j], choice.can_skip and asking[j].can_skip
                length = min(slot.max_tokens, choice.length)
                allowances[auto[j]] = Allowance(length, THRESHOLDS[choice.limit], can_skip)
        elif not any(fixed):
            probed = self._probe(speculator, asking, step)
            if probed is not None:
                slot = asking[probed]
                length = min(slot.max_tokens, PROBE_TOKENS)
                allowances[auto[probed]] = Allowance(length, can_skip=slot.can_skip, is_probe=True)
            if not any(slot.to_beat or slot.prefix < 1.0 for slot in asking):
                drafter.num_refused += 1
                drafter.rest = REST if drafter.num_refused > REST_AFTER else 0
        for i in auto:
            if allowances[i] is NO_ALLOWANCE:
                self._skip(speculator, slots[i].number)
        return allowances

    def plan_together(
        self, asked: Mapping[str, Sequence[ModelSlot]], step: Step
    ) -> dict[str, list[Allowance]]:
        """How far each of several models may draft; at most one of them drafts for a slot.

        They are planned in the order of `asked`. What a model is expected to gain in a slot, its
        own time deducted, is what a later one has to exceed there; then the slot is the later
        one's. Where lengths are set by hand, the first is preferred.
        """
        holders: dict[int, tuple[str, int]] = {}  # by number: who drafts, and where it is planned
        gains: dict[int, float] = {}
        planned: dict[str, list[Allowance]] = {}
        for name, slots in asked.items():
            if gains:
                slots = [replace(s, to_beat=s.to_beat + gains.get(s.number, 0.0)) for s in slots]
            allowances = planned[name] = self.plan(name, slots, step)
            gain = self.drafters[name].gain
            for index, (slot, allowance) in enumerate(zip(slots, allowances, strict=True)):
                if not allowance.max_tokens:
                    continue
                if (holder := holders.get(slot.number)) is not None:
                    if slot.fixed_confidence is not None:
                        allowances[index] = NO_ALLOWANCE
                        continue
                    planned[holder[0]][holder[1]] = NO_ALLOWANCE
                    self._skip(holder[0], slot.number)
                    if not gain:  # only a probe, which takes these tokens from another
                        self.drafters[name].probes.charge(gains[slot.number])
                holders[slot.number] = (name, index)
                gains[slot.number] = gains.get(slot.number, 0.0) + gain
        return planned

    def wanted(self, speculator: str, numbers: Sequence[int]) -> Sequence[int]:
        """Of these, those to plan for in this step: all or none."""
        if self.sleeps(speculator):
            self.wait(speculator, 1)
            return ()
        return numbers

    def sleeps(self, speculator: str) -> int:
        """Steps in which none are `wanted`."""
        drafter = self.drafters[speculator]
        probes = drafter.probes
        if probes.is_closed and self.drafters[with_gap(speculator)].probes.is_closed:
            return probes.num_waits
        return 0 if probes.reading is not None else drafter.rest

    def wait(self, speculator: str, num_steps: int) -> None:
        """It is not planned for in so many steps."""
        drafter = self.drafters[speculator]
        drafter.rest -= num_steps
        self._save(speculator, num_steps)

    def _save(self, speculator: str, num_steps: int) -> None:
        for can_skip in (False, True):
            self._state(speculator, can_skip=can_skip).probes.save(num_steps)

    def begin(self) -> None:
        """A request begins: it may be one for which a model pays."""
        for drafter in self.drafters.values():
            drafter.rest = drafter.num_refused = 0

    def observe(self, call: DraftCall, numbers: Sequence[int], step: Step, saved_ms: float) -> None:
        """Learn what a call cost, and from its drafts what the next ones will be like.

        numbers: of the requests, by answer.
        saved_ms: time that its drafts were seen to save, the call's own not deducted.
        """
        drafter = self.drafters[call.speculator]
        plain = self._budget.plain_ms(step)
        drafter.cost.observe(call, plain)
        is_gapped = any(allowance.can_skip for _, allowance, _ in call.drafted)
        account = self._state(call.speculator, can_skip=is_gapped).probes
        if call.is_probe:
            drafter.probes.charge(call.milliseconds / plain)
            account.settle(saved_ms / plain)
        else:
            reading = (call.catch_up or 0) * drafter.cost.token(plain)
            account.unpaid += reading / plain
            account.settle((saved_ms - call.milliseconds + reading) / plain)
        for index, allowance, draft in call.drafted:
            number = numbers[index]
            drafter.probes.called(number)
            state = self._state(call.speculator, can_skip=allowance.can_skip)
            name = with_gap(call.speculator) if allowance.can_skip else call.speculator
            survival = self._calibration.survival(name, draft.confidence, number)
            state.learn(number, draft.confidence, survival, allowance)
            state.forget()

    def calibrate(self, speculator: str, round_ms: float, token_ms: float) -> None:
        """Prices of one slot, measured before the first request."""
        price = token_ms if token_ms > 0.0 else None  # no more than a clock can tell: guess
        self.drafters[speculator].cost = DraftCost({1: max(round_ms, 1e-6)}, price)

    def end(self, number: int, num_answered: int, num_running: int) -> None:
        """The request is over; `num_running` ran, with this one."""
        self._answer += 0.1 * (num_answered - self._answer)
        for drafter in self.drafters.values():
            drafter.end(number, num_answered)
            drafter.probes.end(num_running)

    def describe(self) -> dict[str, Any]:
        """Prices per draft model, JSON-ready."""
        return {
            name: {
                "round_ms": {
                    str(n): round(ms, 4) for n, ms in sorted(drafter.cost.round_ms.items())
                },
                "catch_up_ms": drafter.cost.catch_up_ms,
                "min_confidence": THRESHOLDS[drafter.limit],
            }
            for name, drafter in self.drafters.items()
            if not name.endswith(GAP)
        }

    def _best(
        self,
        speculator: str,
        slots: Sequence[ModelSlot],
        step: Step,
        *,
        can_skip: bool = False,
    ) -> Decision:
        """The choice worth most; NO_DECISION if none pays."""
        longest = max((slot.max_tokens for slot in slots), default=0)
        longest = min(longest, step.max_draft_rows)
        if longest < 1:
            return NO_DECISION
        drafter, skips = self.drafters[speculator], [can_skip and slot.can_skip for slot in slots]
        states = [self._state(speculator, can_skip=skip) for skip in skips]
        num_even = step.num_slots if step.is_even else 0
        most_rows = step.num_verify_base + min(
            step.max_draft_rows, (num_even or len(slots)) * longest
        )
        curve = self._cost.curve(most_rows, step.context, can_fill=step.can_pad)
        plain = curve[step.num_slots]
        rate = self._budget.rate(step)
        token_price = rate * drafter.cost.token(plain)
        reading = [
            token_price
            * (slot.num_recent if skip else slot.catch_up)
            / max(1.0, state.share * self._num_left(slot))
            for state, slot, skip in zip(states, slots, skips, strict=True)
        ]
        # each pays its own rounds behind, though those of several slots are decoded together
        round_price = rate * drafter.cost.round(len(slots), plain)
        slots = [
            replace(s, to_beat=s.to_beat + round_price * s.rounds_behind) if s.rounds_behind else s
            for s in slots
        ]
        base = step.num_verify_base
        price = Price(drafter.cost, rate, curve, base, num_even, plain, reading)
        num_lengths, best = bisect_right(LENGTHS, longest), NO_DECISION
        acceptance = [
            self._calibration.mean(name)
            for name in (speculator, with_gap(speculator))[: 1 + can_skip]
        ]
        for t in range(max(0, drafter.limit - 1), min(len(THRESHOLDS), drafter.limit + 2)):
            forecasts = [
                state.forecast(slot.number, t, acceptance[skip])
                for state, slot, skip in zip(states, slots, skips, strict=True)
            ]
            best = better(best, slots, t, forecasts, price, num_lengths)
        return best._replace(can_skip=can_skip)

    def _num_left(self, slot: ModelSlot) -> float:
        """Tokens still to come. Lengths of answers vary so much that what was written says little
        about what is left, so that is taken to be the mean answer, or what max_tokens leaves.
        """
        return max(1.0, min(slot.num_left, self._answer))

    def _probe(self, speculator: str, slots: Sequence[ModelSlot], step: Step) -> int | None:
        """The slot to probe with now, if any."""
        drafter = self.drafters[speculator]
        plain = self._budget.plain_ms(step)
        token, round_price = drafter.cost.token(plain) / plain, drafter.cost.round(1, plain) / plain
        saved = self._saved_if_perfect(drafter.cost, step)
        probed = [
            ProbeSlot(
                slot.number,
                token * slot.num_recent + round_price * slot.rounds_behind,
                saved * self._num_left(slot) / step.num_slots,
            )
            for slot in slots
        ]
        return drafter.probes.choose(probed, PROBE_TOKENS * round_price)

    def _saved_if_perfect(self, cost: DraftCost, step: Step) -> float:
        """Plain steps that each token would save over what is reached without this model if it
        were always right.
        """
        plain, base, num_slots = self._budget.plain_ms(step), step.num_base_rows, step.num_slots
        longest = min(LENGTHS[-1], step.max_draft_rows // num_slots)
        curve = self._cost.curve(base + num_slots * longest, step.context, can_fill=step.can_pad)
        round_ms = cost.round(num_slots, plain)
        times = (
            (k * round_ms + plain + curve[base + num_slots * k] - curve[base]) / (k + 1)
            for k in LENGTHS
            if k <= longest
        )
        now = 1.0 / self._budget.reached.speedup
        return max(0.0, now - min(times, default=plain) / plain)

    def _state(self, speculator: str, *, can_skip: bool) -> ModelState:
        """What a model's drafts are like, with the middle of the text left out or not."""
        return self.drafters[with_gap(speculator) if can_skip else speculator]

    def _skip(self, speculator: str, number: int) -> None:
        """No draft of this model for this request."""
        for name in (speculator, with_gap(speculator)):
            if (state := self.drafters.get(name)) is not None:
                state.skip(number)
