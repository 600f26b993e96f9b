"""Decides whether and how far a draft model drafts, before its time is spent.

All answers draft together, in rounds of one token each. Chooses the number of answers, length and
confidence limit of the highest value, or none if no value is positive:

    expected accepted tokens - price * (draft ms(answers, rounds) + ms(base + rows) - ms(base))

`forecast` predicts the drafts; the price of a millisecond is the budget's. At most one model drafts
for a slot.

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
from headstart.control.forecast import LIMITS, Array, DraftHistory, forecast
from headstart.control.trials import PROBE_TOKENS, Probes
from headstart.control.values import WEIGHT, AskedAnswer, DraftCall, Step
from headstart.types import Rows

LENGTHS = np.array((1, 2, 3, 4, 6, 8, 12, 16, 24, 32))
CLOSED, REFUSED = "resting: its drafts lost time", "resting: not expected to pay"
REST = 3  # most steps for which a model that was often refused is not planned


@dataclass(slots=True)
class ModelState:
    """Statistics of one draft model."""

    SAVED: ClassVar = ("cost", "history", "probes")

    cost: DraftCost = field(default_factory=DraftCost)
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
        for name, own in asked.items():
            has_fixed, auto = False, list[AskedAnswer]()
            for one in own:
                policy = one.answer.sequence.policy
                if policy.is_fixed:
                    has_fixed = True
                    if chosen.setdefault(one.number, one) is one:
                        one.num_granted = one.max_tokens
                        one.min_confidence = policy.p_min
                elif one.max_tokens > 0:
                    auto.append(one)
            if not auto:
                continue
            drafter = self.drafters[name]
            if drafter.probes.is_closed:
                for one in auto:
                    one.reason = CLOSED
            # until then it does not catch up on every prompt
            if self._calibration.tables[name].num_labels < WEIGHT:
                auto.sort(key=lambda one: one.catch_up)
                for one in auto[1:]:
                    one.reason = "tried on another slot first"
                del auto[1:]
            best, length, limit, gain = self._best(name, auto, step, gains)
            for one in best:
                _grant(one, length, chosen)
                one.min_confidence = limit
                gains[one.number] = gains.get(one.number, 0.0) + gain
            if any(one.num_granted for one in own):
                drafter.probes.reading, drafter.num_refused = None, 0
            elif not has_fixed:
                probed = self._probe(drafter, auto, step)
                if probed is not None:
                    one = next(one for one in auto if one.number == probed)
                    drafter.probes.savings -= gains.get(probed, 0.0)  # taken from another
                    _grant(one, PROBE_TOKENS, chosen)
                    one.is_probe = True
                if not any(one.to_beat for one in own):
                    drafter.num_refused += 1
                    drafter.rest = min(REST, drafter.num_refused // 8)
        for name, own in asked.items():
            for one in own:
                if not one.num_granted:
                    self.drafters[name].history.skip(one.number)

    def begin_step(self, speculator: str) -> str:
        """Save up for probes, once per step; returns why it is not planned now, "" if it is."""
        drafter = self.drafters[speculator]
        probes = drafter.probes
        probes.accrue()
        rests = probes.savings < probes.goal if probes.is_closed else drafter.rest > 0
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
        probes = drafter.probes
        if call.catch_up is None or not (call.catch_up or call.drafted):  # the call failed
            if call.is_probe:
                probes.savings -= call.milliseconds / plain
                probes.reading = None
            else:
                probes.settle(-call.milliseconds / plain)
            return
        expected = drafter.cost.observe(call, plain)
        if call.is_probe:  # what was expected of it was saved up in advance
            probes.savings -= (call.milliseconds - expected) / plain
            probes.settle(saved_ms / plain)
        else:
            reading = call.catch_up * drafter.cost.token(plain)
            probes.unpaid += reading / plain
            probes.settle((saved_ms - call.milliseconds + reading) / plain)
        for one in call.drafted:
            number, scores = one.number, one.draft.confidence
            probes.called(number)
            survival = self._calibration.survival(call.speculator, scores, number)
            drafter.history.learn(number, scores, survival, one.num_granted, one.min_confidence)

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
        }

    def _best(
        self,
        speculator: str,
        asked: Sequence[AskedAnswer],
        step: Step,
        gains: Mapping[int, float],
    ) -> tuple[list[AskedAnswer], int, float, float]:
        """The best plan for these answers, beyond the expected gains of other models: for which to
        draft, how far, down to which confidence, and the expected tokens above the price for each.
        """
        nothing = list[AskedAnswer](), 0, 0.0, 0.0
        state = self.drafters[speculator]
        cost = state.cost
        state.gain = 0.0
        if not asked or step.max_draft_rows < 1 or state.probes.is_closed:
            return nothing
        most = [min(one.max_tokens, step.max_draft_rows) for one in asked]
        mean = self._calibration.tables[speculator].mean()
        probabilities = state.history.probabilities([one.number for one in asked], mean)
        # arrays by answer, limit and length
        tokens, rows, rounds = forecast(probabilities, np.minimum.outer(most, LENGTHS))
        plain = self._budget.plain_ms(step)
        token_price = self._budget.price_per_ms(step, plain) * cost.token(plain)
        readings = list[float]()  # price of catching up, per token of the steps with its drafts
        for one in asked:
            reading = token_price * one.catch_up
            readings.append(reading / max(1.0, state.history.share * self._num_left(one)))
        worth = self._worth(asked, tokens, readings, gains, step)
        order, busy = np.zeros((1, len(LIMITS)), np.intp), rounds / LENGTHS
        if len(asked) > 1:  # the most valuable answers first, for each limit
            order = (-worth.max(axis=2)).argsort(axis=0, kind="stable")
            each = np.array((worth, rows, busy))
            worth, rows, busy = each[:, order, np.arange(len(LIMITS))]
        # by number of answers, limit and length
        values = worth.cumsum(axis=0) - self._price(rows, busy, max(most), cost, step)
        last, at = divmod(int(values.argmax()), len(LIMITS) * len(LENGTHS))
        limit, length = divmod(at, len(LENGTHS))
        state.gain = value = float(values[last, limit, length])
        if value <= 0.0:
            return nothing
        best = [asked[i] for i in order[: last + 1, limit]]
        return best, int(LENGTHS[length]), float(LIMITS[limit]), value / (last + 1)

    def _worth(
        self,
        asked: Sequence[AskedAnswer],
        tokens: Array,
        readings: Sequence[float],
        gains: Mapping[int, float],
        step: Step,
    ) -> Array:
        """Expected accepted tokens, minus what the answers have without this draft and minus the
        price of catching up; by answer, limit and length, as `tokens`.
        """
        to_beat, handicap = list[float](), self._budget.handicap(step)
        for one, reading in zip(asked, readings, strict=True):
            to_beat.append(one.to_beat + gains.get(one.number, 0.0) + reading + handicap)
        factors = 1.0 - np.array(readings)
        worth: Array = factors[:, None, None] * tokens - np.array(to_beat)[:, None, None]
        return worth

    def _price(self, rows: Array, busy: Array, longest: int, cost: DraftCost, step: Step) -> Array:
        """Price of the model's and the target's time for the first 1, 2, ... answers.

        Args:
            rows: expected draft tokens, by answer, limit and length.
            busy: share of the rounds in which the answer's draft still grows.
            longest: most tokens of a draft.
        """
        num = len(rows)
        # rows that are decoded again have passes of their own
        base = step.num_slots if step.rows is Rows.EQUAL else step.num_base_rows
        if step.rows is Rows.PADDED:
            rows, most_rows = step.num_slots * np.maximum.accumulate(rows), step.num_slots * longest
        else:
            rows, most_rows = rows.cumsum(axis=0), num * longest
        most_rows = base + min(step.max_draft_rows, most_rows)
        curve = self._cost.curve(most_rows, step.context, can_fill=step.can_pad)
        plain = curve[step.num_slots]
        round_ms = np.array([cost.round(n, plain) for n in range(1, num + 1)])[:, None, None]
        draft_ms = round_ms * LENGTHS * (1.0 - (1.0 - busy).cumprod(axis=0))
        if step.rows is Rows.EQUAL:  # those with drafts have a pass of their own
            first = np.arange(1, num + 1)[:, None, None]
            draft_ms += np.take(curve, base - first)
            rows = first + rows
        else:
            rows = base + rows
        more_ms = draft_ms + np.interp(rows, np.arange(len(curve)), curve) - curve[base]
        per_ms, per_ms2 = self._budget.price_terms(step, plain)
        price: Array = (per_ms + per_ms2 * (2.0 * curve[base] + more_ms)) * more_ms
        return price

    def _num_left(self, one: AskedAnswer) -> float:
        """Tokens still to come: the mean answer length, but at least as many as there are so far,
        because lengths vary so much; at most the rest of max_tokens.
        """
        return max(1.0, min(one.num_left, max(self._answer, one.num_answered)))

    def _probe(self, drafter: ModelState, asked: Sequence[AskedAnswer], step: Step) -> int | None:
        """The request to probe now, if any."""
        plain = self._budget.plain_ms(step)
        token, price = drafter.cost.token(plain) / plain, drafter.cost.round(1, plain) / plain
        readings = {one.number: token * one.catch_up for one in asked}
        return drafter.probes.choose(readings, PROBE_TOKENS * price)


def _grant(one: AskedAnswer, length: int, chosen: dict[int, AskedAnswer]) -> None:
    """Let a model draft for this answer, instead of the one chosen before."""
    if one.number in chosen:
        chosen[one.number].num_granted = 0
    one.num_granted, chosen[one.number] = min(one.max_tokens, length), one
