"""When a draft model that is off drafts a little all the same, and what that may cost.

A model that is off leaves no labels, so now and then it drafts a few tokens to be compared with the
text (they need not be verified). Savings of a small share of the time pay for that, and for drafts
of sizes never measured. The steps between two probes double, to PROBE_LAST, while guesses are
wrong.

A model that has not read a request's prompt must read some of it before it can draft. That begins
when the savings pay for it and for some probes behind it, which are cheap then, and only where a
perfect model would earn it back in this request. A call is charged with the time it took, when that
is known.

Of a long prompt a probe leaves out the middle, if the model can do that. What it drafts then is
hardly better than with the whole text before it: good enough to see that it is not useless, for a
sixteenth of the price of 4,000 tokens. But a model may be good only where it knows all of the text,
so whole prompts are read too, out of savings of their own. That takes several calls, and half a
prompt is worth nothing: reading that has begun goes on with every step until the model drafts.

Savings for a whole prompt take thousands of steps. So the first one of a new model is read on
credit: the user chose it, and if it is good, all requests gain. There is credit again when a prompt
that was read for a probe has been earned back in its request: the model is better than believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from headstart.control.codec import Checks, number

PROBE_TOKENS, PROBE_FIRST, PROBE_LAST = 3, 2, 64  # draft tokens; steps between probes
PROBE_SHARE = 0.01  # of the time; as much for whole prompts where probes leave out their middle
PROBES_PER_PROMPT = 6  # that must be affordable behind a prompt
DEBT = 8.0  # most, in plain steps: one call may take far longer than expected
# Most savings, unless one prompt costs more, and most that is lent for the first prompt, in plain
# steps: 4,000 tokens take about 40 (`control_simulation --long-prompts`: without credit, control
# never drafts behind the first ones).
CREDIT = 64.0


class ProbeSlot(NamedTuple):
    """A slot that could be probed. In plain steps."""

    seq_id: int
    reading: float  # price of all that the model has to read for it
    recent: float  # the same without what it can leave out
    hope: float  # what a perfect model would save in the rest of the request
    is_known: bool  # whether it drafted for this request before


@dataclass(slots=True)
class Probes:
    """Of one draft model. Prices and savings in plain steps."""

    SAVED: ClassVar[Checks] = {"savings": number(), "has_credit": bool}

    savings: float = 0.0
    prompt_savings: float = 0.0  # for whole prompts
    has_credit: bool = True
    probed: int | None = None  # the sequence whose prompt was read for a probe last
    owed: float = 0.0  # of what that took, not earned back yet
    saved_by_token: float = 1.0  # a plain step is shared by all slots
    wait: int = PROBE_FIRST
    steps: int = 0  # since the last draft
    reading: int | None = None  # the sequence whose prompt is being read for a probe
    goal: float = 0.0  # what the probe that is being saved for costs
    prompt_goal: float = 0.0  # the same with a whole prompt
    promising: int | None = None  # the sequence of which the last draft was right
    can_skip: bool = False  # the probe that is being made may leave out the middle of the text

    def save(self, num_steps: int = 1) -> None:
        """So many more steps."""
        if self.savings < max(CREDIT, self.goal):
            self.savings += num_steps * PROBE_SHARE
        if self.prompt_savings < max(CREDIT, self.prompt_goal):
            self.prompt_savings += num_steps * PROBE_SHARE

    def choose(self, slots: Sequence[ProbeSlot], price: float) -> int | None:
        """Index of the slot to probe with now, if any; `can_skip` says how.

        price: of a probe without reading.
        """
        self.steps += 1
        for index, slot in enumerate(slots):
            if slot.seq_id == self.reading:
                return index
        self.reading = None
        nearest = min(range(len(slots)), key=lambda i: slots[i].recent)
        if not slots[nearest].is_known:  # a new text may be unlike the others
            self.wait = PROBE_FIRST
        if self.steps < self.wait:
            return None
        shortest = min(range(len(slots)), key=lambda i: slots[i].reading)
        if self._reads_whole(slots[shortest], price):
            return self._begin(slots, shortest, can_skip=False)
        if self._reads_recent(slots[nearest], price):
            return self._begin(slots, nearest, can_skip=True)
        return None

    def _reads_whole(self, slot: ProbeSlot, price: float) -> bool:
        """Whether to read a prompt whose middle could be left out, all the same."""
        if slot.reading <= max(slot.recent, price) or slot.hope < slot.reading:
            return False
        goal = self.prompt_goal = slot.reading + price * PROBES_PER_PROMPT
        if self.has_credit and goal <= CREDIT:
            self.prompt_savings, self.has_credit = max(self.prompt_savings, goal), False
        if goal > self.prompt_savings:
            return False
        self.prompt_savings -= goal
        self.savings = max(self.savings, goal)
        self.probed, self.owed = slot.seq_id, goal
        return True

    def _reads_recent(self, slot: ProbeSlot, price: float) -> bool:
        """Whether to probe with what the model then has to read."""
        is_long = slot.recent > price
        if is_long and slot.hope < slot.recent:
            return False
        self.goal = slot.recent + price * (PROBES_PER_PROMPT if is_long else 1)
        if is_long and self.has_credit and self.goal <= CREDIT:
            self.savings, self.has_credit = max(self.savings, self.goal), False
        if self.goal > self.savings + (DEBT if slot.seq_id == self.promising else 0.0):
            return False
        if is_long and slot.recent == slot.reading:
            self.probed, self.owed = slot.seq_id, self.goal
        return True

    def _begin(self, slots: Sequence[ProbeSlot], index: int, *, can_skip: bool) -> int:
        self.reading, self.can_skip = slots[index].seq_id, can_skip
        return index

    def called(self, seq_ids: Sequence[int], steps: float, *, is_probe: bool) -> None:
        """The model ran for `steps` plain steps; `seq_ids` got a draft."""
        if is_probe:
            self.charge(steps)
        if self.reading in seq_ids:
            self.reading, self.steps = None, 0
            self.wait = min(PROBE_LAST, 2 * self.wait)

    def charge(self, steps: float) -> None:
        """Charge a probe `steps` beyond its own time."""
        self.savings = max(-DEBT, self.savings - steps)

    def granted(self) -> None:
        """The model drafts because that pays: probe at once when it no longer does."""
        self.steps, self.wait, self.reading = 0, PROBE_FIRST, None

    def spent(self, seq_id: int, steps: float) -> None:
        """Drafting for this sequence and verifying that took `steps` plain steps."""
        if self.probed == seq_id:
            self.owed += steps

    def matched(self, seq_id: int, num_tokens: int) -> None:
        """`num_tokens` more of its tokens were accepted."""
        if self.probed != seq_id:
            return
        self.owed -= num_tokens * self.saved_by_token
        if self.owed <= 0.0:
            self.probed, self.has_credit = None, True

    def was_right(self, seq_id: int) -> None:
        """All of a draft agreed with the text: look again soon, if need be on debt."""
        self.wait, self.promising = PROBE_FIRST, seq_id

    def was_wrong(self, seq_id: int) -> None:
        """Some of it did not."""
        if self.promising == seq_id:
            self.promising = None

    def end(self, seq_id: int) -> None:
        """The request is over."""
        if self.reading == seq_id:
            self.reading = None
        if self.probed == seq_id:
            self.probed = None
        self.was_wrong(seq_id)
