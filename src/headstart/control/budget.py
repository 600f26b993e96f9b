"""The budget, last stage of the planner: decides which draft tokens are verified.

In: survival in tokens, costs in milliseconds. Out: for each slot, the draft tokens whose survival
pays for their row.

A token is worth the time it would take otherwise. In the long run that is 1 / rate, with rate =
tokens per millisecond currently reached, so a step should maximise

    sum of survival over the rows given - rate * ms(base rows + rows given)

(Dinkelbach's form of tokens / time). Maximising each step's own quotient would stop too early in
easy text, because it prices the rest of the text at the easy rate. Rows go to the highest survival
over all slots; survival never rises within a slot, so each gets a prefix. The cost curve has jumps,
so every total is tried.

The rate is kept as a speedup over the same slots without drafts, so that it does not depend on the
machine's load, and never below 1: drafts must beat plain decoding. Steps with prompts have the same
rate as others: a price relative to their own, longer time would admit drafts that delay every
request (`benchmarks.control_simulation --arrivals`: busy time 1.04 of off's and median time to the
first token 1.37, against 0.98 and 0.94).

A request that arrives during a step waits for its end, half of its time on average. At A arrivals a
millisecond that costs A / 2 ms^2, so the price of a millisecond rises with the length of the step.

Plain steps are timed even while all steps have drafts or padding: a level too high for the width in
use looks like a slower machine, and losing drafts would continue forever. So occasionally a step is
plain, within TRIAL_SHARE of the time.

Recurrent layers without snapshots keep one state. It is copied before a draft is verified; after a
rejection it is restored, and the next step decodes the accepted tokens again, before another draft
if that pays. So a draft has a price besides its rows, which is higher if the draft is likely to end
early. And a pass over such a model computes equally many rows of each sequence (`Rows.EQUAL`), so
all sequences with drafts have one number of rows in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

from headstart.control.cost import MARGIN, CostTable
from headstart.control.values import FADE, FAST, SLOW, TRIAL_SHARE, Step
from headstart.types import Rows

if TYPE_CHECKING:
    from headstart.scheduler.step import StepPlan

# A request counts as so many that generate, in a step that gives its first token or during which it
# arrives. `--arrivals`, eight users with short prompts: the median time to the first token is 1.06
# of off's on a processor and 1.04 on a GPU, 1.09 and 1.07 if these are not priced; times to the end
# change by 1 %. More than 1 for all whose prompts are read would slow answers beside long ones.
FIRST_TOKEN = 8.0


class Budget:
    """Assigns draft tokens to slots. Owns the speedup reached."""

    SAVED: ClassVar = ("_tokens", "_time", "copy_ms")

    def __init__(self, cost: CostTable) -> None:
        self._cost = cost
        self._tokens = self._time = 1.0  # averages of steps, relative to those without drafts
        self._arrived = self._elapsed_ms = 0.0  # requests during other steps, and these steps' time
        self._num_unseen = 0  # steps since a plain one
        self.copy_ms: float | None = None  # of one sequence's state; None: nothing was copied

    def observe_copy(self, milliseconds: float) -> None:
        """Update the time of copying a sequence's state."""
        if self.copy_ms is None:
            self.copy_ms = milliseconds
        # a sequence's first copy allocates, and takes up to ten times as long
        self.copy_ms += FAST * (min(milliseconds, 2.0 * self.copy_ms) - self.copy_ms)

    def observe_arrivals(self, number: int, milliseconds: float) -> None:
        """Count the requests that arrived during a step; as if none had before the first one."""
        self._elapsed_ms = FADE * (self._elapsed_ms or milliseconds / (1.0 - FADE)) + milliseconds
        self._arrived = FADE * self._arrived + number

    @property
    def speedup(self) -> float:
        """The speedup reached; never below 1."""
        return max(1.0, self._tokens / self._time)

    def price_per_ms(self, step: Step, plain_ms: float) -> float:
        """Tokens per millisecond that a draft must exceed, including the margin.

        A millisecond delays every slot in use, but drafts repay only those that generate.
        """
        num_delayed = step.num_slots + step.num_reading + (FIRST_TOKEN - 1.0) * step.num_first
        return self.speedup * (1.0 + MARGIN) * num_delayed / plain_ms

    def price_terms(self, step: Step, plain_ms: float) -> tuple[float, float]:
        """The price of a step in tokens, including arrivals: per ms, and per ms^2."""
        arrivals = self._arrived / (self._elapsed_ms or 1.0)
        per_slot = self.speedup * (1.0 + MARGIN) / plain_ms
        return self.price_per_ms(step, plain_ms), 0.5 * FIRST_TOKEN * arrivals * per_slot

    def plain_ms(self, step: Step) -> float:
        """Milliseconds of a step without drafts."""
        curve = self._cost.curve(step.num_slots, step.context, can_fill=step.can_pad)
        return curve[step.num_slots]

    def best(self, survivals: Sequence[Sequence[float]], step: Step) -> int | None:
        """Index of a slot's most valuable draft, the first of equals; None if all are empty.

        Value: sum of (survival - price of a row) while positive; if no draft pays, of survival.
        """
        longest = min(max(map(len, survivals), default=0), max(1, step.max_draft_rows))
        if len(survivals) == 1 or not longest:
            return 0 if longest else None
        curve = self._cost.curve(step.most_rows(longest), step.context, can_fill=step.can_pad)
        per_ms = self.price_per_ms(step, curve[step.num_slots])
        price = per_ms * step.draft_ms([longest], curve) / longest

        def worth(index: int) -> tuple[float, float]:
            survival = survivals[index]
            return sum([s - price for s in survival if s > price]), sum(survival)

        return max(range(len(survivals)), key=worth)

    def assign_rows(self, plan: StepPlan) -> None:
        """Write into the plan how many draft tokens each answer verifies, what that saves, and
        padding rows if a wider step takes less time. O(n log n) in draft tokens.
        """
        step = plan.step
        assert step is not None
        survivals, given = [], [0] * len(plan.answers)
        fixed, left = set(), step.max_draft_rows
        for index, answer in enumerate(plan.answers):
            survival, policy = answer.survival, answer.sequence.policy
            if self.copy_ms is not None:
                num_again = step.again[index] if step.again else 0
                survival = self._worth(survival, step, self.copy_ms, num_again)
            survivals.append(survival)
            if policy.is_fixed:
                fixed.add(index)
                length = min(len(survival), left)
                if length >= policy.n_min:
                    given[index], left = length, left - length
        num_fixed = sum(given)
        speedup = self.speedup
        is_bare = not num_fixed and self._try_plain(step, speedup)
        if not is_bare and any(survivals):
            free = [[] if i in fixed else own for i, own in enumerate(survivals)]
            share = {Rows.PADDED: self._evenly, Rows.EQUAL: self._equally}
            shared = share.get(step.rows, self._by_rows)(free, given, left, step)
            for index, length in enumerate(shared):
                if index not in fixed and length >= plan.answers[index].sequence.policy.n_min:
                    given[index] = length
        most_rows = step.most_rows(max(given))
        curve = self._cost.curve(most_rows, step.context, can_fill=step.can_pad)
        extra_ms, num_given, gained = step.draft_ms(given, curve), sum(given), 0.0
        if num_given > num_fixed:
            token_ms = curve[step.num_slots] / step.num_slots / speedup
            row_ms = extra_ms / num_given
            for answer, survival, length in zip(plan.answers, survivals, given, strict=True):
                if length:
                    tokens = sum(survival[:length])
                    gained += tokens
                    answer.saved_ms = token_ms * tokens - row_ms * length
        if not num_fixed:  # fixed lengths say nothing about the speedup
            for call in plan.calls:
                if call.is_model and not call.is_probe:  # probes are paid from their own budget
                    extra_ms += call.milliseconds
            if step.again:
                extra_ms += step.milliseconds((), curve) - curve[step.num_slots]
            time = 1.0 + extra_ms / curve[step.num_slots]
            self._tokens += SLOW * (1.0 + gained / step.num_slots - self._tokens)
            self._time += SLOW * (time - self._time)
        rows = step.num_base_rows + num_given
        if step.can_pad and not is_bare:
            width = min(self._cost.width(rows, step.context), step.max_rows)
            plan.num_padding = max(0, width - rows)
        if rows + plan.num_padding == step.num_slots:
            self._num_unseen = 0
        for answer, length in zip(plan.answers, given, strict=True):
            answer.num_verified = length

    def handicap(self, step: Step) -> float:
        """Tokens that a draft model's draft loses to copies of a state that cannot be truncated."""
        if self.copy_ms is None:
            return 0.0
        survival = [0.5] * 3  # a typical draft, as there is none yet
        return max(0.0, sum(survival) - sum(self._worth(survival, step, self.copy_ms)))

    def _worth(
        self, survival: Sequence[float], step: Step, copy_ms: float, num_again: int = 0
    ) -> list[float]:
        """Net value of each token: its survival minus what it adds to the price of a draft that
        cannot be truncated for free. `num_again`: rows decoded again before it.

        Non-increasing, like survival: if a token pays for earlier ones, they share the value.
        """
        # if lengths are equal, rows that are decoded again have a pass of their own
        base = 1 if step.rows is Rows.EQUAL else step.num_base_rows - num_again
        most = base + num_again + len(survival)
        curve = self._cost.curve(max(most, step.num_slots), step.context, can_fill=step.can_pad)
        per_ms = self.price_per_ms(step, curve[step.num_slots])
        without_ms = curve[base]
        if step.rows is Rows.EQUAL:
            without_ms = curve[step.num_slots] - curve[step.num_slots - 1]
        # by the step after a rejection, if those rows are too expensive for another draft
        lost = max(0.0, per_ms * curve[step.num_slots] / step.num_slots - 1.0)
        # the state is copied before it, unless that was done before the rows decoded again
        worth, reached, price = list[float](), 1.0, 0.0 if num_again else per_ms * copy_ms
        for index, chance in enumerate(survival, 1):
            again = per_ms * (curve[base + num_again + index] - without_ms)
            again += per_ms * copy_ms + min(again, lost)
            price += (reached - chance) * again  # for this token being the first one rejected
            worth.append(chance - price)
            reached, price = chance, 0.0
        return _never_rising(worth)

    def _try_plain(self, step: Step, speedup: float) -> bool:
        """Count the step; returns whether to time it without drafts and padding, which is rare."""
        num_slots, lost = step.num_slots, 1.0 - 1.0 / speedup
        if step.num_base_rows > num_slots:
            return False
        self._num_unseen += 1
        saved_up = self._num_unseen * TRIAL_SHARE
        if step.can_pad and saved_up > max(lost, MARGIN):  # without padding it loses even more
            bare_ms = self._cost.milliseconds(num_slots, step.context)
            lost += bare_ms / self.plain_ms(step) - 1.0
        return saved_up > max(lost, MARGIN)

    def _by_rows(
        self, survivals: Sequence[Sequence[float]], given: Sequence[int], left: int, step: Step
    ) -> Sequence[int]:
        """Give rows to the tokens with the highest survival while that pays."""
        ranked = sorted([s for own in survivals for s in own if s > 0.0], reverse=True)
        del ranked[left:]
        if not ranked:
            return given
        base = step.num_base_rows + sum(given)
        curve = self._cost.curve(base + len(ranked), step.context, can_fill=step.can_pad)
        per_ms, per_ms2 = self.price_terms(step, curve[step.num_slots])
        # expected tokens above the price of the first 0, 1, ... of them
        totals = zip(accumulate(ranked, initial=0.0), curve[base:], strict=False)
        values = [tokens - (per_ms + per_ms2 * ms) * ms for tokens, ms in totals]
        num_rows = values.index(max(values))
        if len(survivals) == 1 or not num_rows:
            return [num_rows] * len(survivals)
        threshold = ranked[num_rows - 1]  # ties go to the earlier slot
        ties = ranked[:num_rows].count(threshold)
        lengths = []
        for own in survivals:
            length = 0
            for chance in own:
                if chance < threshold or (chance == threshold and not ties):
                    break
                length += 1
                ties -= chance == threshold
            lengths.append(length)
        return lengths

    def _evenly(
        self, survivals: Sequence[Sequence[float]], given: Sequence[int], left: int, step: Step
    ) -> Sequence[int]:
        """Choose one length for all slots, if the longest draft is computed for each.

        A fixed length is the minimum: up to that, drafts of other slots are free.
        """
        num_slots, least = step.num_slots, max(given)
        most = min(step.max_rows - num_slots, left) // num_slots
        longest = min(max(map(len, survivals)), most)
        curve = self._cost.curve(num_slots * (1 + max(least, longest)), step.context)
        per_ms, per_ms2 = self.price_terms(step, curve[num_slots])
        gains = accumulate(map(sum, zip_longest(*survivals, fillvalue=0.0)), initial=0.0)
        times = [curve[num_slots * (1 + max(least, length))] for length in range(longest + 1)]
        values = [
            gain - (per_ms + per_ms2 * ms) * ms for gain, ms in zip(gains, times, strict=False)
        ]
        best = values.index(max(values)) if values else 0
        return [sum([s > 0.0 for s in own[:best]]) for own in survivals]

    def _equally(
        self, survivals: Sequence[Sequence[float]], given: Sequence[int], left: int, step: Step
    ) -> Sequence[int]:
        """Choose one number of rows, those decoded again included, and which slots have drafts of
        as many: each other number would take a further pass.
        """
        again = step.again or [0] * len(survivals)
        longest = min(max(map(len, survivals)), left)
        curve = self._cost.curve(step.most_rows(longest), step.context)
        per_ms, per_ms2 = self.price_terms(step, curve[step.num_slots])
        gains = [list(accumulate(own, initial=0.0)) for own in survivals]
        # rows decoded again without a draft first count as passes of their own, which is O(1)
        again_ms = sum([curve[1 + num] for num in again if num])
        ms = again_ms + curve[again.count(0)]
        most, best, num_best = -(per_ms + per_ms2 * ms) * ms, list[tuple[float, int, int]](), 0
        for num_more in range(1, max(again) + longest + 1):
            drafts = list[tuple[float, int, int]]()  # gain, slot, length
            for index, own in enumerate(gains):
                length = num_more - again[index]
                if 0 < length < len(own) and own[length] > 0.0:
                    drafts.append((own[length], index, length))
            drafts.sort(key=itemgetter(0), reverse=True)
            gain, num_given, rest_ms, num_plain = 0.0, 0, again_ms, again.count(0)
            for num, (worth, index, length) in enumerate(drafts, 1):
                num_given += length
                if num_given > left:
                    break
                gain += worth
                if again[index]:
                    rest_ms -= curve[1 + again[index]]
                else:
                    num_plain -= 1
                ms = curve[num * (1 + num_more)] + rest_ms + curve[num_plain]
                if (value := gain - (per_ms + per_ms2 * ms) * ms) > most:
                    most, best, num_best = value, drafts, num
        chosen = {index: length for _, index, length in best[:num_best]}
        lengths = [chosen.get(index, 0) for index in range(len(again))]
        before, after = (step.milliseconds(one, curve) for one in ((), lengths))
        gain = sum([worth for worth, _, _ in best[:num_best]])
        pays = gain > (per_ms + per_ms2 * (before + after)) * (after - before)
        return lengths if pays else [0] * len(again)


def _never_rising(values: Sequence[float]) -> list[float]:
    """Non-increasing values with the same sum in each block (pool adjacent violators).

    >>> _never_rising([-1.0, 2.0, 0.25])
    [0.5, 0.5, 0.25]
    """
    blocks: list[tuple[float, int]] = []  # mean, length
    for value in values:
        mean, length = value, 1
        while blocks and blocks[-1][0] < mean:
            before, count = blocks.pop()
            mean = (before * count + mean * length) / (count + length)
            length += count
        blocks.append((mean, length))
    return [mean for mean, length in blocks for _ in range(length)]
