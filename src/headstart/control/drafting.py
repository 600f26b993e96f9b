"""Whether and how far a draft model drafts: its time has to be earned before it is spent.

For a draft of up to k tokens the model goes on to the next token with probability q (it stops below
its minimum confidence) and each token drafted is accepted with probability a_j given those before:

    tokens(k) = sum_j  prod_(i <= j) q a_i        rounds(k) = sum_j q^(j-1)        rows(k) = sum_j q^j

All slots draft together, so the slots and the k with the highest

    sum over slots tokens(k) - rate * (draft ms(slots, rounds) + ms(base + rows) - ms(base))

are chosen, nothing if none is above 0. `rate` is the budget's, margin included. A token's row pays
while survival * acceptance > rate * ms per row, which gives the minimum confidence.

Savings of PROBE_SHARE of the time pay for two kinds of drafts that are not expected to pay: ones that
would under an optimistic cost of row counts never measured, and probes.

A model that is off leaves no labels, so now and then it drafts a few tokens to be compared with the
text (they need not be verified). The time between two doubles while it stays off, to PROBE_LAST steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headstart.control.budget import Budget
from headstart.control.calibration import Calibration
from headstart.control.cost import CostTable
from headstart.control.state import floats
from headstart.control.values import NO_ALLOWANCE, Allowance, DraftRun, ModelSlot, Step

ROUND_SHARE = 0.15  # prior: a draft round costs this share of a plain step ...
CATCH_UP_SHARE = 0.02  # ... and a token read, this
RATE, MAX_INNOVATION = 0.2, 0.25  # of the price averages; outliers count as 25 %
YOUNG_CALLS = 3  # these may move a price further: the 1st fully, the 2nd by a half, the 3rd by a third
STRICTEST = 0.85  # of the mean acceptance: what pays on average must not be refused on average
CONTINUE_RATE = 0.05  # of the average of q, per round
CATCH_UP_STEPS = 16  # reading what was missed is paid off over this many steps
PROBE_TOKENS, PROBE_FIRST, PROBE_LAST = 3, 2, 64  # draft tokens; steps between probes
PROBE_SHARE, PROBE_START, PROBE_LIMIT = 0.01, 4.0, 64.0  # of the time; savings at first and at most, in plain steps


@dataclass(slots=True)
class DraftCost:
    """Milliseconds of one draft model: per round by number of slots, and per token read."""

    round_ms: dict[int, float] = field(default_factory=dict)
    catch_up_ms: float | None = None
    calls: dict[int, int] = field(default_factory=dict)  # by number of slots

    def milliseconds(self, num_slots: int, rounds: float, catch_up: int, plain_ms: float) -> float:
        """Expected time of a call; `plain_ms` prices what was never measured."""
        price = self.catch_up_ms if self.catch_up_ms is not None else CATCH_UP_SHARE * plain_ms
        return rounds * self._round(num_slots, plain_ms) + catch_up * price

    def observe(self, run: DraftRun, plain_ms: float) -> None:
        """Learn from one call; a share of the innovation goes to each part of the price."""
        num_slots = sum(asked > 0 for asked in run.asked)
        rounds = max((min(a, n + 1) for a, n in zip(run.asked, run.drafted, strict=True)), default=0)
        if not rounds or run.milliseconds <= 0.0:
            return
        per_round = self._round(num_slots, plain_ms)
        price = self.catch_up_ms if self.catch_up_ms is not None else CATCH_UP_SHARE * plain_ms
        expected = rounds * per_round + run.catch_up * price
        share = rounds * per_round / expected
        ratio = run.milliseconds / expected - 1.0
        calls = self.calls[num_slots] = self.calls.get(num_slots, 0) + 1
        cut = max(-0.95, min(2.0, ratio)) / calls
        if calls > YOUNG_CALLS:
            cut = max(-MAX_INNOVATION, min(MAX_INNOVATION, ratio)) * RATE
        self.round_ms[num_slots] = per_round * (1.0 + cut * share)
        if run.catch_up:
            self.catch_up_ms = price * (1.0 + cut * (1.0 - share))

    def _round(self, num_slots: int, plain_ms: float) -> float:
        """More slots cost a tenth more each, until measured."""
        if num_slots in self.round_ms:
            return self.round_ms[num_slots]
        if not self.round_ms:
            return ROUND_SHARE * plain_ms * (1.0 + 0.1 * (num_slots - 1))
        nearest = min(self.round_ms, key=lambda n: abs(n - num_slots))
        return self.round_ms[nearest] * (1.0 + 0.1 * max(0, num_slots - nearest))


@dataclass(slots=True)
class _Drafter:
    """What is known of one draft model, and its probes. Times in plain steps."""

    cost: DraftCost = field(default_factory=DraftCost)
    going_on: float = 0.9  # q
    savings: float = PROBE_START
    wait: int = PROBE_FIRST
    steps: int = 0  # since the last draft


class Drafting:
    """Prices draft models and grants them tokens."""

    def __init__(self, cost: CostTable, budget: Budget, calibration: Calibration) -> None:
        self._cost, self._budget, self._calibration = cost, budget, calibration
        self._drafters: dict[str, _Drafter] = {}

    def plan(self, speculator: str, slots: Sequence[ModelSlot], step: Step) -> list[Allowance]:
        """How far the model may draft for each slot, before it runs. O(slots * tokens)."""
        drafter = self._drafter(speculator)
        fixed = [slot.fixed_confidence is not None for slot in slots]
        auto = [i for i, is_fixed in enumerate(fixed) if not is_fixed and slots[i].max_tokens > 0]
        allowances = [
            Allowance(slot.max_tokens, slot.fixed_confidence) if slot.fixed_confidence is not None else NO_ALLOWANCE
            for slot in slots
        ]
        if not auto:
            return allowances
        drafter.savings = min(PROBE_LIMIT, drafter.savings + PROBE_SHARE)
        chosen, length = self._best(speculator, [slots[i] for i in auto], step, optimistic=False)
        is_hope = not chosen
        if is_hope:
            chosen, length = self._hope(speculator, [slots[i] for i in auto], step)
        if chosen:
            drafter.steps, drafter.wait = 0, PROBE_FIRST
            threshold = 0.0 if is_hope else self._threshold(speculator, length, len(chosen), step)
            for j in chosen:
                slot = slots[auto[j]]
                allowances[auto[j]] = Allowance(min(slot.max_tokens, length), threshold)
        elif not any(fixed):
            probed = self._probe(drafter, [slots[i] for i in auto], step)
            if probed is not None:
                allowances[auto[probed]] = Allowance(min(slots[auto[probed]].max_tokens, PROBE_TOKENS))
        return allowances

    def observe(self, run: DraftRun, step: Step) -> None:
        """Learn what a call cost and how often the model went on."""
        drafter = self._drafter(run.speculator)
        drafter.cost.observe(run, self._plain(step))
        for asked, drafted in zip(run.asked, run.drafted, strict=True):
            for i in range(min(asked, drafted + 1)):
                drafter.going_on += CONTINUE_RATE * ((1.0 if i < drafted else 0.0) - drafter.going_on)

    def describe(self) -> dict[str, Any]:
        """Prices per draft model, JSON-ready."""
        return {
            name: {
                "round_ms": {str(n): round(ms, 4) for n, ms in sorted(drafter.cost.round_ms.items())},
                "catch_up_ms": drafter.cost.catch_up_ms,
                "continues": drafter.going_on,
                "probe_after": drafter.wait,
            }
            for name, drafter in self._drafters.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Everything learned."""
        return {
            name: {
                "round_ms": {str(n): ms for n, ms in drafter.cost.round_ms.items()},
                "catch_up_ms": drafter.cost.catch_up_ms,
                "going_on": drafter.going_on,
            }
            for name, drafter in self._drafters.items()
        }

    def from_json(self, state: dict[str, Any]) -> None:
        """Take over saved prices.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: damaged; nothing was changed.
        """
        drafters = {}
        for name, saved in state.items():
            rounds = {int(n): floats([ms], 1, 1e-6, 1e6)[0] for n, ms in saved["round_ms"].items()}
            catch_up = saved["catch_up_ms"]
            price = None if catch_up is None else floats([catch_up], 1, 0.0, 1e6)[0]
            (going_on,) = floats([saved["going_on"]], 1, 0.0, 1.0)
            drafters[str(name)] = _Drafter(DraftCost(rounds, price), going_on)
        self._drafters = drafters

    def _hope(self, speculator: str, slots: Sequence[ModelSlot], step: Step) -> tuple[list[int], int]:
        """What would be best if row counts never measured are cheap, while the probes' savings last."""
        if self._cost.is_known(step.num_base_rows + step.max_draft_rows, step.context):
            return [], 0
        chosen, length = self._best(speculator, slots, step, optimistic=True)
        drafter, plain = self._drafter(speculator), self._plain(step)
        catch_up = sum(slots[i].catch_up for i in chosen)
        price = drafter.cost.milliseconds(len(chosen), length, catch_up, plain) / plain
        if not chosen or price > drafter.savings:
            return [], 0
        drafter.savings -= price
        return chosen, length

    def _best(
        self, speculator: str, slots: Sequence[ModelSlot], step: Step, *, optimistic: bool
    ) -> tuple[list[int], int]:
        """Indices of the slots to draft for, and the length; nothing if it does not pay."""
        drafter, rate, plain = self._drafter(speculator), self._budget.rate(step), self._plain(step)
        longest = min(max(slot.max_tokens for slot in slots), step.max_draft_rows)
        if longest < 1:
            return [], 0
        gains = [self._gains(speculator, slot, longest) for slot in slots]
        order = sorted(range(len(slots)), key=lambda i: -max(gains[i]))
        curve = self._cost.curve(
            step.num_base_rows + min(step.max_draft_rows, len(slots) * longest), step.context, optimistic=optimistic
        )
        before, catch_up = [0.0] * longest, 0
        best_value, best_count, best_length = 0.0, 0, 0
        for count, i in enumerate(order, 1):
            before = [a + b for a, b in zip(before, gains[i], strict=True)]
            catch_up += slots[i].catch_up
            fixed_ms = drafter.cost.milliseconds(count, 0.0, catch_up, plain) / CATCH_UP_STEPS
            round_ms = drafter.cost.milliseconds(count, 1.0, 0, plain)
            rounds, going = 0.0, 1.0
            for k in range(longest):
                rounds, going = rounds + going, going * drafter.going_on
                rows = step.num_base_rows + count * drafter.going_on * rounds
                verify_ms = _between(curve, min(rows, len(curve) - 1.0)) - curve[step.num_base_rows]
                value = before[k] - rate * (fixed_ms + rounds * round_ms + verify_ms)
                if value > best_value:
                    best_value, best_count, best_length = value, count, k + 1
        return order[:best_count], best_length

    def _gains(self, speculator: str, slot: ModelSlot, longest: int) -> list[float]:
        """Expected further tokens of a draft of 1, 2, ... tokens for this slot."""
        going_on = self._drafter(speculator).going_on
        going, total, gains = slot.prefix, -slot.rival, []
        for i, survival in enumerate(self._calibration.expected(speculator, longest, slot.seq_id)):
            if i < slot.max_tokens:
                going *= going_on
                total += going * survival
            gains.append(total)
        return gains

    def _threshold(self, speculator: str, length: int, num_slots: int, step: Step) -> float:
        """Confidence below which a token half way through the draft does not pay for its row."""
        half, mean = max(1, length // 2), self._calibration.mean(speculator)
        survival = (self._drafter(speculator).going_on * mean) ** (half - 1)
        price = self._budget.row_price(step, min(num_slots * half, max(1, step.max_draft_rows)))
        return self._calibration.confidence_for(speculator, min(price / survival, STRICTEST * mean))

    def _probe(self, drafter: _Drafter, slots: Sequence[ModelSlot], step: Step) -> int | None:
        """The slot to probe with now, if any."""
        drafter.steps += 1
        if drafter.steps < drafter.wait:
            return None
        nearest = min(range(len(slots)), key=lambda i: slots[i].catch_up)
        plain = self._plain(step)
        price = drafter.cost.milliseconds(1, PROBE_TOKENS, slots[nearest].catch_up, plain) / plain
        if price > drafter.savings:
            return None
        drafter.savings -= price
        drafter.steps, drafter.wait = 0, min(PROBE_LAST, 2 * drafter.wait)
        return nearest

    def _plain(self, step: Step) -> float:
        return self._cost.curve(step.num_slots, step.context)[step.num_slots]

    def _drafter(self, speculator: str) -> _Drafter:
        drafter = self._drafters.get(speculator)
        if drafter is None:
            drafter = self._drafters[speculator] = _Drafter()
        return drafter


def _between(curve: Sequence[float], rows: float) -> float:
    whole = int(rows)
    return curve[whole] + (rows - whole) * (curve[min(whole + 1, len(curve) - 1)] - curve[whole])
