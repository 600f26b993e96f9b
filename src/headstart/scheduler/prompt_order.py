"""How many prompt rows a step has, of which prompts.

Those who generate wait for them, so they are as many as the time of a step allows, judged by what
the last ones took: attention makes each row of a long prompt dearer than the one before.

The shortest come first, so that a short prompt is not held up by a long one. Half of all rows go to
the prompt that waits longest, so that a stream of short ones does not hold it up for ever: not in
each step, but in steps of its own, several in a row. For tokens that are read one after the other
get neighbouring cells. A processor's attention skips tiles of cells of which a row sees none
(`Engine.attention_tile`); where two prompts take turns with every 64 rows, each also looks at the
cells of the other.
"""

from __future__ import annotations

from headstart.scheduler.sequence import Sequence
from headstart.scheduler.step import StepPlan


class PromptOrder:
    """The order of the prompts that are being read."""

    def __init__(self, tile: int) -> None:
        """`tile`: rows for which attention is computed at once."""
        self._tile = tile
        self._oldest: Sequence | None = None
        self._num_owed = 0  # rows that others read since the oldest waits, less its own
        self._is_oldest_first = False
        self._num_in_a_row = 0
        self._last_rows, self._row_ms = 0, 0.0  # of the last step that read as much as it might

    def num_rows(self, least: int, most: int, milliseconds: float) -> int:
        """Prompt rows of the next step.

        At least `least` whatever they take, then twice as many as long as they are expected to
        take no more than `milliseconds`, up to `most` and to twice those of the last step.
        """
        rows = min(least, most)
        while rows <= self._last_rows and rows < most and 2 * rows * self._row_ms <= milliseconds:
            rows = min(2 * rows, most)
        return rows

    def share(
        self,
        reading: list[Sequence],
        num_rows: int,
        followers: list[Sequence],
    ) -> list[int]:
        """Rows of each prompt in a step of `num_rows`; `reading` is in the order of admission.

        A prompt that a shorter one waits for, because they begin alike, comes as early as that.
        """
        if reading[0] is not self._oldest:
            self._oldest, self._num_owed, self._is_oldest_first = reading[0], 0, False
        # tiles read in a row before another prompt has its turn
        in_a_row = 4 * self._tile if num_rows >= self._tile else 0
        self._num_in_a_row = max(num_rows, in_a_row)
        order = sorted(range(len(reading)), key=_lengths(reading, followers).__getitem__)
        if self._is_oldest_first:
            order.remove(0)
            order.insert(0, 0)
        rows = [0] * len(reading)
        left = num_rows
        for i in order:
            # a piece of less than a tile would take as long as a whole one, here and in the next
            # step
            if reading[i].num_pending > left and left < min(self._tile, num_rows):
                continue
            rows[i] = min(left, reading[i].num_pending)
            left -= rows[i]
        return rows

    def count(self, plan: StepPlan, milliseconds: float) -> None:
        """Note what a step read in how long, before any of its prompts begins to answer."""
        num_read = sum(plan.num_rows[plan.num_generating :])
        if 2 * num_read >= plan.max_prompt_rows > 0:  # not the short rest of a prompt
            # what it might: a step of whole tiles has some rows more or fewer
            self._last_rows, self._row_ms = plan.max_prompt_rows, milliseconds / num_read
        num_others = 0
        for index, sequence in plan.decoded:
            if sequence is self._oldest:
                self._num_owed -= plan.num_rows[index]
            elif index >= plan.num_generating:
                num_others += plan.num_rows[index]
        self._num_owed = max(0, self._num_owed + num_others)
        if not self._is_oldest_first:
            self._is_oldest_first = self._num_owed >= self._num_in_a_row > 0
        elif not self._num_owed:
            self._is_oldest_first = False


def _lengths(reading: list[Sequence], followers: list[Sequence]) -> list[int]:
    """What is left of each prompt, or of the shortest one that waits for it."""
    lengths = {id(sequence): sequence.num_pending for sequence in reading}
    for follower in followers:
        leader = follower
        while leader.leader is not None:
            leader = leader.leader
        if id(leader) in lengths:
            lengths[id(leader)] = min(lengths[id(leader)], follower.num_pending)
    return list(lengths.values())
