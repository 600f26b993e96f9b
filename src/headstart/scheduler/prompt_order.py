"""Chooses how many prompt rows a step has, and of which prompts.

Requests that generate wait for these rows, so there are as many as the time limit of a step allows.
The time is estimated from the last steps, because attention makes each row of a long prompt slower
than the previous one.

Tenants share the time of steps: first come the prompts of the tenant whose rows, including those of
answers, took least time so far; ties go to the one with fewest requests. An
occasional tenant is ahead of a constant one by at most the time of `_ALONE` rows; if new tenants
keep arriving, each waiting one gets a step after twice that time. Source: Sheng et al. 2024,
"Fairness in serving large language models", OSDI, https://arxiv.org/abs/2401.00588

Of a tenant's prompts the shortest come first, so that a short one is not held up by a long one.
Half of its rows go to the prompt that has waited longest, so that a stream of short ones cannot
starve it: not half of each step, but several whole steps in a row. Tokens decoded in succession get
neighbouring cells, and attention on a CPU skips tiles of cells that a row does not see
(`Engine.attention_tile`): if two prompts alternated every 64 rows, each would also compute the
cells of the other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from headstart.config import SchedulerConfig
from headstart.scheduler.admission import Tenants
from headstart.scheduler.sequence import Sequence
from headstart.scheduler.step import StepPlan
from headstart.types.constraint import NO_LIMIT

# prompt rows of a step if no answers wait, or only such as give way, and how many times longer than
# others it may take: also bounds the latency of a cancel
_ALONE, _ALONE_SHARE = 512, 5


class PromptOrder:
    """The order of prompts in prefill."""

    def __init__(self, tile: int, tenants: Tenants) -> None:
        """`tile`: rows that attention computes together."""
        self._tile, self._tenants = tile, tenants
        self._readers: dict[str, _Reader] = {}  # tenants that have prompts
        self._took: dict[str, float] = {}  # milliseconds of step time, by tenant
        self._num_in_a_row = 0
        self._last_rows, self._row_ms = 0, 0.0  # of the last step with as many as allowed

    def num_rows(self, least: int, most: int, milliseconds: float) -> int:
        """Prompt rows of the next step.

        At least `least`, however long they take; then doubled while they are expected to take at
        most `milliseconds`, up to `most` and to twice the rows of the last step.
        """
        rows = min(least, most)
        while rows <= self._last_rows and rows < most and 2 * rows * self._row_ms <= milliseconds:
            rows = min(2 * rows, most)
        return rows

    def limit(
        self, prompts: list[Sequence], running: list[Sequence], config: SchedulerConfig, most: int
    ) -> int:
        """Maximum prompt rows of the next step: few while tenants wait for the next token of an
        answer, unless all of these give way to the tenant whose prompts come first; at most the
        rows of that tenant, if the tenants that would follow in the same step give way.
        """
        first = self._by_tenant([one for one in prompts if one.leader is None] or prompts)[0]
        tenant, num_pending = first[0].tenant, sum(sequence.num_pending for sequence in first)
        answering = {sequence.tenant for sequence in running if sequence.is_generating}
        others = answering or {sequence.tenant for sequence in prompts} - {tenant}
        gives_way = bool(others) and all(self._tenants.gives_way(one, tenant) for one in others)
        milliseconds = config.prefill_ms
        if not answering:
            rows = self.num_rows(_ALONE, most, _ALONE_SHARE * milliseconds)
            return min(rows, max(config.prefill_chunk, num_pending)) if gives_way else rows
        rows = self.num_rows(config.prefill_chunk, most, milliseconds)
        if self._row_ms and gives_way:
            affordable = int(_ALONE_SHARE * milliseconds / self._row_ms)
            rows = max(rows, min(_ALONE, most, affordable, num_pending))
        return rows

    def share(
        self,
        reading: list[Sequence],
        num_rows: int,
        followers: list[Sequence],
        max_scored: int = NO_LIMIT,
    ) -> list[int]:
        """Rows of each prompt in a step of `num_rows`; `reading` is in the order of admission.
        Prompts whose tokens are scored have about `max_scored` together.

        A prompt with the prefix that a shorter one waits for is ranked like the shorter one.
        """
        # rows read in a row before another prompt has its turn
        in_a_row = 4 * self._tile if num_rows >= self._tile else 0
        self._num_in_a_row = max(num_rows, in_a_row)
        lengths, rows, left = _lengths(reading, followers), dict[Sequence, int](), num_rows
        for own in self._by_tenant(reading):
            reader = self._readers[own[0].tenant]
            own.sort(key=lengths.__getitem__)
            if reader.is_oldest_first:
                own.sort(key=lambda one: one.number != reader.oldest)
            for one in own:
                # a chunk below a tile would cost as much as a whole one, in this step and the next
                if one.num_pending > left and left < min(self._tile, num_rows):
                    continue
                rows[one] = min(left, one.num_pending)
                if one.is_scored:
                    rows[one] = min(rows[one], 1 + max_scored)
                    max_scored -= rows[one] - 1
                left -= rows[one]
        return [rows.get(one, 0) for one in reading]

    def count(self, plan: StepPlan, milliseconds: float) -> None:
        """Record rows and time of a step, before any of its prompts starts generating."""
        num_read = sum(prompt.num_rows for prompt in plan.prompts)
        if 2 * num_read >= plan.max_prompt_rows > 0:  # not the short remainder of a prompt
            # the allowed rows: a step of whole tiles has some more or fewer
            self._last_rows, self._row_ms = plan.max_prompt_rows, milliseconds / num_read
        row_ms = milliseconds / (plan.num_rows - plan.num_padding or 1)
        readers = dict[str, _Reader]()
        for one in (*plan.answers, *plan.prompts):
            if not (num_rows := one.num_rows):
                continue
            tenant = one.sequence.tenant
            self._took[tenant] = self._took.get(tenant, 0.0) + num_rows * row_ms
            if one.is_prompt:
                reader = readers[tenant] = self._readers[tenant]
                is_oldest = one.sequence.number == reader.oldest
                reader.num_owed += -num_rows if is_oldest else num_rows
        for tenant, reader in self._readers.items():
            reader.waited = 0.0 if tenant in readers else reader.waited + milliseconds
        for reader in readers.values():
            reader.num_owed = max(0, reader.num_owed)
            if not reader.is_oldest_first:
                reader.is_oldest_first = reader.num_owed >= self._num_in_a_row > 0
            elif not reader.num_owed:
                reader.is_oldest_first = False

    def _by_tenant(self, reading: list[Sequence]) -> list[list[Sequence]]:
        """The prompts of each tenant, in the order of turns."""
        own = defaultdict[str, list[Sequence]](list)
        for sequence in reading:
            own[sequence.tenant].append(sequence)
        known = {reader.oldest: reader for reader in self._readers.values()}
        self._readers = {
            name: known.get(prompts[0].number) or _Reader(prompts[0].number)
            for name, prompts in own.items()
        }
        ahead = _ALONE * self._row_ms
        least = max(self._took.values(), default=0.0) - ahead
        took = dict.fromkeys(own, least) | self._took
        self._took = {
            name: max(took[name], least) for name in took if name in own or took[name] > least
        }

        def rank(name: str) -> tuple[bool, float, int]:
            is_late = self._readers[name].waited > 2 * ahead
            return not is_late, self._took[name], self._tenants.num_held(name)

        return [own[name] for name in sorted(own, key=rank)]


@dataclass(slots=True)
class _Reader:
    """A tenant with prompts in prefill, while one of them is the oldest."""

    oldest: int  # number of that one: a reference would keep it in memory
    waited: float = 0.0  # milliseconds since it had rows
    num_owed: int = 0  # rows read of other prompts, minus those of the oldest
    is_oldest_first: bool = False


def _lengths(reading: list[Sequence], followers: list[Sequence]) -> dict[Sequence, int]:
    """Remaining tokens of each prompt, or of the shortest one that waits for it."""
    lengths = {sequence: sequence.num_pending for sequence in reading}
    for follower in followers:
        leader = follower
        while leader.leader is not None:
            leader = leader.leader
        if leader in lengths:
            lengths[leader] = min(lengths[leader], follower.num_pending)
    return lengths
