"""When a draft model that is off drafts a little all the same, and what that may cost.

A model that is off leaves no labels, so now and then it drafts a few tokens to be compared with the
text (they need not be verified). Savings of a small share of the time pay for that, and for drafts
of sizes never measured. The steps between two probes double, to PROBE_LAST, while guesses are
wrong.

A model that has not read a request's prompt must read it before it can guess. That begins when the
savings pay for all of it and for some probes behind it, which are cheap then, and only where a
perfect model would earn it back in this request. It takes several calls, and half a prompt is worth
nothing: reading that has begun goes on with every step until the model drafts. A call is charged
with the time it took, when that is known.

Savings for a long prompt take thousands of steps. So the first prompt of a new model is read on
credit: somebody chose it, and if it is good, all requests gain. There is credit again when a prompt
that was read for a probe has been earned back in its request: the model is better than believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PROBE_TOKENS, PROBE_FIRST, PROBE_LAST = 3, 2, 64  # draft tokens; steps between probes
PROBE_SHARE = 0.01  # of the time
PROBE_LIMIT = 64.0  # most savings, in plain steps, unless one prompt costs more
PROBES_PER_PROMPT = 6  # that must be affordable behind a prompt
DEBT = 8.0  # most, in plain steps: one call may take far longer than expected
# Most that is lent for the first prompt, in plain steps: once, where 4,000 tokens take about 40
# (`control_simulation --long-prompts`: without it fresh control never drafts behind them).
CREDIT = 64.0


@dataclass(slots=True)
class Probes:
    """Of one draft model. Prices and savings in plain steps."""

    savings: float = 0.0
    has_credit: bool = True
    probed: int | None = None  # the sequence whose prompt was read for a probe last
    owed: float = 0.0  # of what that took, not earned back yet
    saved_by_token: float = 1.0  # a plain step is shared by all slots
    wait: int = PROBE_FIRST
    steps: int = 0  # since the last draft
    reading: int | None = None  # the sequence whose prompt is being read for a probe
    goal: float = 0.0  # what the probe that is being saved for costs
    is_charged: bool = False  # the call that was granted last is paid from the savings

    def save(self) -> None:
        """One more step."""
        self.is_charged = False
        if self.savings < max(PROBE_LIMIT, self.goal):
            self.savings += PROBE_SHARE

    def choose(
        self,
        seq_ids: Sequence[int],
        reading: Sequence[float],
        hopes: Sequence[float],
        known: Sequence[bool],
        price: float,
    ) -> int | None:
        """Index of the sequence to probe with now, if any.

        Args:
            reading: price of what the model has to read for each.
            hopes: what a perfect model would save in the rest of each request.
            known: whether it drafted for this request before.
            price: of a probe without reading.
        """
        self.steps += 1
        if self.reading in seq_ids:
            self.is_charged = True
            return seq_ids.index(self.reading)
        self.reading = None
        nearest = min(range(len(seq_ids)), key=lambda i: reading[i])
        if not known[nearest]:  # a new text may be unlike the others
            self.wait = PROBE_FIRST
        if self.steps < self.wait:
            return None
        is_long = reading[nearest] > price
        if is_long and hopes[nearest] < reading[nearest]:
            return None
        self.goal = reading[nearest] + price * (PROBES_PER_PROMPT if is_long else 1)
        if is_long and self.has_credit and self.goal <= CREDIT:
            self.savings, self.has_credit = max(self.savings, self.goal), False
        if self.goal > self.savings:
            return None
        if is_long:
            self.probed, self.owed = seq_ids[nearest], self.goal
        self.reading = seq_ids[nearest]
        self.is_charged = True
        return nearest

    def called(self, seq_ids: Sequence[int], steps: float) -> None:
        """The model ran; `seq_ids` got a draft, and it took as long as so many plain steps."""
        if self.is_charged:
            self.savings = max(-DEBT, self.savings - steps)
            self.is_charged = False
        if self.reading in seq_ids:
            self.reading, self.steps = None, 0
            self.wait = min(PROBE_LAST, 2 * self.wait)

    def charge(self, steps: float) -> None:
        """A probe costs so much besides its own time."""
        self.savings = max(-DEBT, self.savings - steps)

    def granted(self) -> None:
        """The model drafts because that pays: probe at once when it no longer does."""
        self.steps, self.wait, self.reading = 0, PROBE_FIRST, None

    def spent(self, seq_id: int, steps: float) -> None:
        """Drafting for this sequence and verifying that took as long as so many plain steps."""
        if self.probed == seq_id:
            self.owed += steps

    def matched(self, seq_id: int, num_tokens: int) -> None:
        """So many more of its tokens were right."""
        if self.probed != seq_id:
            return
        self.owed -= num_tokens * self.saved_by_token
        if self.owed <= 0.0:
            self.probed, self.has_credit = None, True

    def was_right(self) -> None:
        """All of a guess agreed with the text: look again soon."""
        self.wait = PROBE_FIRST

    def end(self, seq_id: int) -> None:
        """The request is over."""
        if self.reading == seq_id:
            self.reading = None
        if self.probed == seq_id:
            self.probed = None
