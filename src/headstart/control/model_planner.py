"""Decides whether and how far a draft model drafts, before its time is spent.

All slots draft together, in rounds of one token each. Chooses the number of slots, length and
confidence limit of the highest value, or none if no value is positive:

    expected accepted tokens - rate * (draft ms(slots, rounds) + ms(base + rows) - ms(base))

`forecast` predicts the drafts; `rate` is the budget's, including its margin. A model that skips the
middle of long texts is planned as a separate model (named `with_gap`), with less to decode and its
own statistics. At most one drafts for a slot.

A small share of the time pays for drafts that are not expected to pay (`trials`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from headstart.control.budget import Budget
from headstart.control.calibration import Calibration
from headstart.control.cost import CostTable, DraftCost
from headstart.control.forecast import LIMITS, DraftHistory, forecast
from headstart.control.trials import PROBE_TOKENS, Probes
from headstart.control.values import WEIGHT, AskedAnswer, DraftCall, Step, with_gap
from headstart.types import Rows

LENGTHS = np.array((1, 2, 3, 4, 6, 8, 12, 16, 24, 32))
CLOSED, REFUSED = "resting: its drafts lost time", "resting: not expected to pay"
REST = 3  # most steps for which a model that was often refused is not planned


@dataclass(slots=True)
class ModelState:
    """Statistics of one draft model, or of the same one skipping text."""

    SAVED: ClassVar = ("cost", "history", "probes")

    cost: DraftCost = field(default_factory=DraftCost)  # not used for the one that skips text
    history: DraftHistory = field(default_factory=DraftHistory)
    probes: Probes = field(default_factory=Probes)
    rest: int = 0  # steps in which it is not considered
    num_refused: int = 0  # consecutive plans in which it was not allowed to draft
    gain: float = 0.0  # expected tokens above the price in the last plan; 0 or less: refused


class ModelDraftPlanner:
    """Prices draft models and allows them tokens."""

    SAVED: ClassVar = ("drafters",)

    def __init__(self, cost: CostTable, budget: Budget, calibration: Calibration) -> None:
        self._cost, self._budget, self._calibration = cost, budget, calibration
        self.drafters: defaultdict[str, ModelState] = defaultdict(ModelState)  # by speculator
        self._answer = 128.0  # mean length of an answer, in tokens

    def grant(self, asked: Mapping[str, Sequence[AskedAnswer]], step: Step) -> None:
        """Write into the answers, by model, which of them drafts for which, and how far.

        A later model takes over a slot only if its expected net gain exceeds that of the earlier
        one. With fixed lengths, the first model is preferred.
        """
        chosen: dict[int, AskedAnswer] = {}  # by number
        gains: dict[int, float] = {}
        for name, slots in asked.items():
            has_fixed, auto = False, list[AskedAnswer]()
            for slot in slots:
                policy = slot.answer.sequence.policy
                if policy.is_fixed:
                    has_fixed = True
                    if chosen.setdefault(slot.number, slot) is slot:
                        slot.num_granted = slot.max_tokens
                        slot.min_confidence = policy.p_min
                elif slot.max_tokens > 0:
                    auto.append(slot)
            if not auto:
                continue
            if self.drafters[name].probes.is_closed:
                for slot in auto:
                    slot.reason = CLOSED
            tables = self._calibration.tables
            num_labels = tables[name].num_labels + tables[with_gap(name)].num_labels
            if num_labels < WEIGHT:  # until then it does not catch up on every prompt
                auto.sort(key=lambda slot: slot.catch_up)
                for slot in auto[1:]:
                    slot.reason = "tried on another slot first"
                del auto[1:]
            for can_skip in (False, True):
                able = [slot for slot in auto if slot.can_skip or not can_skip]
                best, length, limit, gain = self._best(name, able, step, gains, can_skip=can_skip)
                for slot in best:
                    _grant(slot, length, chosen)
                    slot.min_confidence, slot.skips = limit, can_skip
                    gains[slot.number] = gains.get(slot.number, 0.0) + gain
            drafter = self.drafters[name]
            if any(slot.num_granted for slot in slots):
                drafter.probes.reading, drafter.num_refused = None, 0
            elif not has_fixed:
                probed = self._probe(drafter, auto, step)
                if probed is not None:
                    slot = next(slot for slot in auto if slot.number == probed)
                    drafter.probes.savings -= gains.get(probed, 0.0)  # taken from another
                    _grant(slot, PROBE_TOKENS, chosen)
                    slot.skips, slot.is_probe = slot.can_skip, True
                if not any(slot.to_beat for slot in slots):
                    drafter.num_refused += 1
                    drafter.rest = min(REST, drafter.num_refused // 8)
        for name, slots in asked.items():
            for slot in slots:
                if not slot.num_granted:
                    for one in (name, with_gap(name)):
                        self.drafters[one].history.skip(slot.number)

    def begin_step(self, speculator: str) -> str:
        """Save up for probes, once per step; returns why it is not planned now, "" if it is."""
        drafter = self.drafters[speculator]
        probes, gapped = drafter.probes, self.drafters[with_gap(speculator)].probes
        probes.accrue()
        gapped.accrue()
        rests = drafter.rest > 0
        if probes.is_closed and gapped.is_closed:
            rests = probes.savings < probes.goal
        if probes.reading is not None or not rests:
            return ""
        drafter.rest = max(0, drafter.rest - 1)
        return CLOSED if probes.is_closed else REFUSED

    def observe(self, call: DraftCall, plain: float, saved_ms: float) -> None:
        """Update cost and draft-length statistics from one call.

        plain: milliseconds of a plain step. saved_ms: measured savings of its drafts, without
        subtracting the call's own time.
        """
        drafter = self.drafters[call.speculator]
        gapped = with_gap(call.speculator)
        is_gapped = any(one.skips for one in call.asked)
        account = self.drafters[gapped].probes if is_gapped else drafter.probes
        if call.catch_up is None or not (call.catch_up or call.drafted):  # the call failed
            if call.is_probe:  # charged to the text-complete model, which funded it
                drafter.probes.savings -= call.milliseconds / plain
                drafter.probes.reading = None
            else:
                account.settle(-call.milliseconds / plain)
            return
        expected = drafter.cost.observe(call, plain)
        if call.is_probe:  # what was expected of it was saved up in advance
            drafter.probes.savings -= (call.milliseconds - expected) / plain
            account.settle(saved_ms / plain)
        else:
            reading = call.catch_up * drafter.cost.token(plain)
            account.unpaid += reading / plain
            account.settle((saved_ms - call.milliseconds + reading) / plain)
        for one in call.drafted:
            number, scores = one.number, one.draft.confidence
            drafter.probes.called(number)
            name = gapped if one.skips else call.speculator
            survival = self._calibration.survival(name, scores, number)
            history = self.drafters[name].history
            history.learn(number, scores, survival, one.num_granted, one.min_confidence)

    def calibrate(self, speculator: str, round_ms: float, token_ms: float) -> None:
        """Set the prices for one slot, measured before the first request."""
        price = token_ms if token_ms > 0.0 else None  # below the clock's resolution: use the prior
        self.drafters[speculator].cost = DraftCost({1: max(round_ms, 1e-6)}, price)

    def end(self, number: int, num_answered: int) -> None:
        """Forget a request that ended, before `Calibration` does."""
        self._answer += 0.1 * (num_answered - self._answer)
        for drafter in self.drafters.values():
            drafter.history.end(number, num_answered)
            drafter.probes.end(number, len(self._calibration.namespaces))

    def describe(self) -> dict[str, Any]:
        """Prices of each draft model, what it was expected to gain last, and what it has earned (in
        plain steps; below 0: it is off), JSON-ready.
        """
        return {
            name: {
                "round_ms": {
                    str(n): round(ms, 4) for n, ms in sorted(drafter.cost.round_ms.items())
                },
                "catch_up_ms": drafter.cost.catch_up_ms,
                "expected_gain": round(drafter.gain, 4),
                "balance": round(drafter.probes.balance, 4),
            }
            for name, drafter in self.drafters.items()
            if not name.endswith(with_gap(""))
        }

    def _best(
        self,
        speculator: str,
        slots: Sequence[AskedAnswer],
        step: Step,
        gains: Mapping[int, float],
        *,
        can_skip: bool,
    ) -> tuple[list[AskedAnswer], int, float, float]:
        """The best plan for these slots, beyond the expected gains of other models: for which slots
        to draft, how far, down to which confidence, and the expected tokens above the price for
        each.
        """
        nothing = list[AskedAnswer](), 0, 0.0, 0.0
        name = with_gap(speculator) if can_skip else speculator
        state, cost = self.drafters[name], self.drafters[speculator].cost
        state.gain = 0.0
        if not slots or step.max_draft_rows < 1 or state.probes.is_closed:
            return nothing
        # rows that are decoded again have passes of their own
        base = step.num_slots if step.rows is Rows.EQUAL else step.num_base_rows
        num_even = step.num_slots if step.rows is Rows.PADDED else 0
        plain, num = self._budget.plain_ms(step), len(slots)
        rate, more = self._budget.rates(step, plain)
        # by slot: what its draft must earn, fixed and per token of catching up
        to_beat, factor = np.empty((num, 1, 1)), np.empty((num, 1, 1))
        token_price, share = rate * cost.token(plain), state.history.share
        handicap = self._budget.handicap(step)
        for i, slot in enumerate(slots):
            reading = token_price * (slot.num_recent if can_skip else slot.catch_up)
            reading /= max(1.0, share * self._num_left(slot))
            to_beat[i] = slot.to_beat + gains.get(slot.number, 0.0) + reading + handicap
            factor[i] = 1.0 - reading
        most = [min(slot.max_tokens, step.max_draft_rows) for slot in slots]
        mean = self._calibration.tables[name].mean()
        rates = state.history.rates([slot.number for slot in slots], mean)
        tokens, rows, rounds = forecast(rates, np.minimum.outer(most, LENGTHS))
        worth = factor * tokens - to_beat
        # by number of slots, limit and length, in each limit's order of slots
        order, busy = np.zeros((1, len(LIMITS)), np.intp), rounds / LENGTHS
        if num > 1:
            order = (-worth.max(axis=2)).argsort(axis=0, kind="stable")
            each = np.array((worth, rows, busy))
            worth, rows, busy = each[:, order, np.arange(len(LIMITS))]
        rows = num_even * np.maximum.accumulate(rows) if num_even else rows.cumsum(axis=0)
        round_ms = np.array([cost.round(n, plain) for n in range(1, num + 1)])[:, None, None]
        draft_ms = round_ms * LENGTHS * (1.0 - (1.0 - busy).cumprod(axis=0))
        most_rows = base + min(step.max_draft_rows, (num_even or num) * max(most))
        curve = self._cost.curve(most_rows, step.context, can_fill=step.can_pad)
        if step.rows is Rows.EQUAL:  # those with drafts have a pass of their own
            first = np.arange(1, num + 1)[:, None, None]
            draft_ms += np.take(curve, base - first)
            rows = first + rows
        else:
            rows = base + rows
        more_ms = draft_ms + np.interp(rows, np.arange(len(curve)), curve) - curve[base]
        price = (rate + more * (2.0 * curve[base] + more_ms)) * more_ms
        values = worth.cumsum(axis=0) - price
        n, at = divmod(int(values.argmax()), len(LIMITS) * len(LENGTHS))
        limit, length = divmod(at, len(LENGTHS))
        state.gain = value = float(values[n, limit, length])
        if value <= 0.0:
            return nothing
        best = [slots[i] for i in order[: n + 1, limit]]
        return best, int(LENGTHS[length]), float(LIMITS[limit]), value / (n + 1)

    def _num_left(self, slot: AskedAnswer) -> float:
        """Tokens still to come: the mean answer length, but at least as many as there are so far,
        because lengths vary so much; at most the rest of max_tokens.
        """
        return max(1.0, min(slot.num_left, max(self._answer, slot.num_answered)))

    def _probe(self, drafter: ModelState, slots: Sequence[AskedAnswer], step: Step) -> int | None:
        """The request to probe now, if any."""
        plain = self._budget.plain_ms(step)
        token, price = drafter.cost.token(plain) / plain, drafter.cost.round(1, plain) / plain
        readings = {one.number: token * one.num_recent for one in slots}
        return drafter.probes.choose(readings, PROBE_TOKENS * price)


def _grant(slot: AskedAnswer, length: int, chosen: dict[int, AskedAnswer]) -> None:
    """Let a model draft for this slot, instead of the one chosen before."""
    if slot.number in chosen:
        chosen[slot.number].num_granted = 0
    slot.num_granted, chosen[slot.number] = min(slot.max_tokens, length), slot
