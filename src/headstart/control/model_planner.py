"""Whether and how far a draft model drafts: its time has to be earned before it is spent.

All slots draft together, in rounds of one token each. Of all numbers of slots, lengths and
confidence limits those are chosen that are worth most, nothing if none is worth its time:

    expected accepted tokens - rate * (draft ms(slots, rounds) + ms(base + rows) - ms(base))

`forecast` says what to expect; `rate` is the budget's, margin included. A model that leaves out the
middle of long texts is planned like another model (its name is `with_gap`), with less to read and
drafts of its own kind. At most one drafts for a slot.

A small share of the time pays for drafts that are not expected to pay (`probes`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from headstart.control.budget import Budget
from headstart.control.calibration import Calibration
from headstart.control.cost import CostTable
from headstart.control.draft_cost import DraftCost
from headstart.control.forecast import LIMITS, DraftHistory, forecast
from headstart.control.probes import PROBE_TOKENS, Probes
from headstart.control.values import (
    NO_ALLOWANCE,
    WEIGHT,
    Allowance,
    DraftCall,
    ModelSlot,
    Step,
    with_gap,
)

LENGTHS = np.array((1, 2, 3, 4, 6, 8, 12, 16, 24, 32))
_ALONE = np.zeros((1, len(LIMITS)), np.intp)  # the order of one slot
REST = 3  # steps at most in which a model is not planned for that was refused often


@dataclass(slots=True)
class ModelState:
    """What is known of one draft model, and of the same one if it leaves out text."""

    SAVED: ClassVar = ("cost", "history", "probes")

    cost: DraftCost = field(default_factory=DraftCost)  # not of the one that leaves out text
    history: DraftHistory = field(default_factory=DraftHistory)
    probes: Probes = field(default_factory=Probes)
    rest: int = 0  # steps in which it is not planned for
    num_refused: int = 0  # plans in a row that did not let it draft


class ModelDraftPlanner:
    """Prices draft models and grants them tokens."""

    SAVED: ClassVar = ("drafters",)

    def __init__(self, cost: CostTable, budget: Budget, calibration: Calibration) -> None:
        self._cost, self._budget, self._calibration = cost, budget, calibration
        self.drafters: defaultdict[str, ModelState] = defaultdict(ModelState)  # by speculator
        self._answer = 128.0  # tokens of one on average

    def plan(
        self, asked: Mapping[str, Sequence[ModelSlot]], step: Step
    ) -> dict[str, list[Allowance]]:
        """How far each model may draft for each of its slots; at most one drafts for a slot.

        What a model is expected to gain in a slot, its own time deducted, is what a later one has
        to exceed there; then the slot is the later one's. Where lengths are set by hand, the first
        is preferred.
        """
        chosen: dict[int, tuple[str, int, Allowance]] = {}  # by number: who drafts, for which slot
        gains: dict[int, float] = {}  # by number
        for name, slots in asked.items():
            by_hand, auto = False, list[int]()
            for index, slot in enumerate(slots):
                if slot.fixed_confidence is None:
                    auto += [index] * (slot.max_tokens > 0)
                else:
                    by_hand, allowance = True, Allowance(slot.max_tokens, slot.fixed_confidence)
                    chosen.setdefault(slot.number, (name, index, allowance))
            if not auto:
                continue
            self._save(name, 1)
            tables = self._calibration.tables
            num_labels = tables[name].num_labels + tables[with_gap(name)].num_labels
            if num_labels < WEIGHT:  # it does not read everybody's prompt
                auto = [min(auto, key=lambda i: slots[i].catch_up)]
            for can_skip in (False, True):
                able = [i for i in auto if slots[i].can_skip or not can_skip]
                own = [slots[i] for i in able]
                best, allowed, gain = self._best(name, own, step, gains, can_skip=can_skip)
                for i in best:
                    slot = slots[able[i]]
                    length = min(slot.max_tokens, allowed.max_tokens)
                    allowance = Allowance(length, allowed.min_confidence, can_skip)
                    chosen[slot.number] = name, able[i], allowance
                    gains[slot.number] = gains.get(slot.number, 0.0) + gain
            drafter = self.drafters[name]
            if any(holder == name for holder, *_ in chosen.values()):
                drafter.probes.reading, drafter.num_refused = None, 0
            elif not by_hand:
                probed = self._probe(drafter, [slots[i] for i in auto], step)
                if probed is not None:
                    index = next(i for i in auto if slots[i].number == probed)
                    slot = slots[index]
                    drafter.probes.savings -= gains.get(slot.number, 0.0)  # taken from another
                    length = min(slot.max_tokens, PROBE_TOKENS)
                    allowance = Allowance(length, can_skip=slot.can_skip, is_probe=True)
                    chosen[probed] = name, index, allowance
                if not any(slot.to_beat or slot.prefix < 1.0 for slot in slots):
                    drafter.num_refused += 1
                    drafter.rest = min(REST, drafter.num_refused // 8)
        planned = {name: [NO_ALLOWANCE] * len(slots) for name, slots in asked.items()}
        for name, index, allowance in chosen.values():
            planned[name][index] = allowance
        for name, slots in asked.items():
            for slot, allowance in zip(slots, planned[name], strict=True):
                if allowance is NO_ALLOWANCE:
                    for one in (name, with_gap(name)):
                        self.drafters[one].history.skip(slot.number)
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
        drafter.rest = max(0, drafter.rest - num_steps)
        self._save(speculator, num_steps)

    def _save(self, speculator: str, num_steps: int) -> None:
        for name in (speculator, with_gap(speculator)):
            self.drafters[name].probes.save(num_steps)

    def begin(self) -> None:
        """A request begins: it may be one for which a model pays."""
        for drafter in self.drafters.values():
            drafter.rest = drafter.num_refused = 0

    def observe(
        self, call: DraftCall, numbers: Sequence[int], plain: float, saved_ms: float
    ) -> None:
        """Learn what a call cost, and from its drafts what the next ones will be like.

        numbers: of the requests, by answer.
        plain: milliseconds of a step without drafts.
        saved_ms: time that its drafts were seen to save, the call's own not deducted.
        """
        drafter = self.drafters[call.speculator]
        gapped = with_gap(call.speculator)
        is_gapped = any(allowance.can_skip for allowance in call.allowances)
        account = self.drafters[gapped].probes if is_gapped else drafter.probes
        if call.catch_up is None or not (call.catch_up or call.drafted):  # it failed
            if call.is_probe:  # which paid for one that does not
                drafter.probes.savings -= call.milliseconds / plain
                drafter.probes.reading = None
            else:
                account.settle(-call.milliseconds / plain)
            return
        drafter.cost.observe(call, plain)
        if call.is_probe:  # it was saved for
            account.settle(saved_ms / plain)
        else:
            reading = call.catch_up * drafter.cost.token(plain)
            account.unpaid += reading / plain
            account.settle((saved_ms - call.milliseconds + reading) / plain)
        for index, allowance, draft in call.drafted:
            number = numbers[index]
            drafter.probes.called(number)
            name = gapped if allowance.can_skip else call.speculator
            survival = self._calibration.survival(name, draft.confidence, number)
            history = self.drafters[name].history
            history.learn(number, draft.confidence, survival, allowance)

    def calibrate(self, speculator: str, round_ms: float, token_ms: float) -> None:
        """Prices of one slot, measured before the first request."""
        price = token_ms if token_ms > 0.0 else None  # no more than a clock can tell: guess
        self.drafters[speculator].cost = DraftCost({1: max(round_ms, 1e-6)}, price)

    def end(self, number: int, num_answered: int, num_running: int) -> None:
        """The request is over; `num_running` ran, with this one."""
        self._answer += 0.1 * (num_answered - self._answer)
        for drafter in self.drafters.values():
            drafter.history.end(number, num_answered)
            drafter.probes.end(number, num_running)

    def describe(self) -> dict[str, Any]:
        """Prices per draft model, JSON-ready."""
        return {
            name: {
                "round_ms": {
                    str(n): round(ms, 4) for n, ms in sorted(drafter.cost.round_ms.items())
                },
                "catch_up_ms": drafter.cost.catch_up_ms,
            }
            for name, drafter in self.drafters.items()
            if not name.endswith(with_gap(""))
        }

    def _best(
        self,
        speculator: str,
        slots: Sequence[ModelSlot],
        step: Step,
        gains: Mapping[int, float],
        *,
        can_skip: bool,
    ) -> tuple[list[int], Allowance, float]:
        """What is worth most in these slots, above what others are expected to gain there: indices
        of slots, how far to draft, and the expected tokens above the price, of each of them.
        """
        nothing = list[int](), NO_ALLOWANCE, 0.0
        if not slots or step.max_draft_rows < 1:
            return nothing
        name = with_gap(speculator) if can_skip else speculator
        state, cost = self.drafters[name], self.drafters[speculator].cost
        if state.probes.is_closed:
            return nothing
        base, num_even = step.num_base_rows, step.num_slots if step.is_even else 0
        plain, num = self._budget.plain_ms(step), len(slots)
        rate = self._budget.rate(step, plain)
        # by slot: what its draft has to earn, as such and for each token of what is read first
        to_beat, factor = np.empty((num, 1, 1)), np.empty((num, 1, 1))
        token_price, share = rate * cost.token(plain), state.history.share
        for i, slot in enumerate(slots):
            reading = token_price * (slot.num_recent if can_skip else slot.catch_up)
            reading /= max(1.0, share * self._num_left(slot))
            to_beat[i] = slot.to_beat + gains.get(slot.number, 0.0) + reading
            factor[i] = slot.prefix * (1.0 - reading)
        most = [min(slot.max_tokens, step.max_draft_rows) for slot in slots]
        mean = self._calibration.tables[name].mean()
        rates = state.history.rates([slot.number for slot in slots], mean)
        tokens, rows, rounds = forecast(rates, np.minimum.outer(most, LENGTHS))
        worth = factor * tokens - to_beat
        # by number of slots, limit and length, in each limit's order of slots
        order, busy = _ALONE, rounds / LENGTHS
        if num > 1:
            order = (-worth.max(axis=2)).argsort(axis=0, kind="stable")
            each = np.array((worth, rows, busy))
            worth, rows, busy = each[:, order, np.arange(len(LIMITS))]
        rows = num_even * np.maximum.accumulate(rows) if num_even else rows.cumsum(axis=0)
        round_ms = np.array([cost.round(n, plain) for n in range(1, num + 1)])[:, None, None]
        draft_ms = round_ms * LENGTHS * (1.0 - (1.0 - busy).cumprod(axis=0))
        most_rows = base + min(step.max_draft_rows, (num_even or num) * max(most))
        curve = self._cost.curve(most_rows, step.context, can_fill=step.can_pad)
        step_ms = np.interp(base + rows, np.arange(len(curve)), curve) - curve[base]
        values = worth.cumsum(axis=0) - rate * (draft_ms + step_ms)
        n, at = divmod(int(values.argmax()), len(LIMITS) * len(LENGTHS))
        limit, length = divmod(at, len(LENGTHS))
        if (value := float(values[n, limit, length])) <= 0.0:
            return nothing
        allowed = Allowance(int(LENGTHS[length]), float(LIMITS[limit]), can_skip)
        return order[: n + 1, limit].tolist(), allowed, value / (n + 1)

    def _num_left(self, slot: ModelSlot) -> float:
        """Tokens still to come. Lengths of answers vary so much that what was written says little
        about what is left, so that is taken to be the mean answer, or what max_tokens leaves.
        """
        return max(1.0, min(slot.num_left, self._answer))

    def _probe(self, drafter: ModelState, slots: Sequence[ModelSlot], step: Step) -> int | None:
        """The request to probe with now, if any."""
        plain = self._budget.plain_ms(step)
        token, price = drafter.cost.token(plain) / plain, drafter.cost.round(1, plain) / plain
        reading = {one.number: token * one.num_recent for one in slots}
        hopes = {one.number: 0.5 * self._num_left(one) / step.num_slots for one in slots}
        return drafter.probes.choose(reading, hopes, PROBE_TOKENS * price)
