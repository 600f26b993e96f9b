"""How many prompt rows a step has, of which prompts.

Requests that generate wait for these rows, so there are as many as the time limit of a step allows.
The time is estimated from the last steps, because attention makes each row of a long prompt dearer
than the one before. Where a whole tile of rows (`Engine.attention_tile`) would take longer than
`--prefill-ms`, a step has the few rows that do not, each of which takes longer then. So that limit
is kept only where it is given: by default a step has at least `--prefill-chunk` rows.

Tenants share the time of steps by weight: first come the prompts of the tenant whose rows, those of
answers included, took least so far, of equals the one that asks for least. A tenant that asks now
and then is ahead of one that always does, by as long as `_ALONE` rows take at most; where new ones
come without end, each that waits has a step after twice that time.
Source: Sheng et al. 2024, "Fairness in serving large language models", OSDI,
https://arxiv.org/abs/2401.00588

Of a tenant's prompts the shortest come first, so that a short one is not held up by a long one.
Half of its rows go to the prompt that has waited longest, so that a stream of short ones does not
hold it up for ever: not half of each step, but several steps in a row of its own. Tokens that are
read one after the other get neighbouring cells, and a processor's attention skips tiles of cells of
which a row sees none (`Engine.attention_tile`): if two prompts took turns with every 64 rows, each
would also compute the cells of the other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from operator import mul

from headstart.config import SchedulerConfig
from headstart.scheduler.admission import Tenants
from headstart.scheduler.sequence import Sequence
from headstart.scheduler.step import StepPlan

# prompt rows of a step that no answer waits for, or only such as give way, and how much longer than
# others it may take: bounds how long a cancel waits, too
_ALONE, _ALONE_SHARE = 512, 5
_MILLISECONDS = 100.0  # of a step with more rows than `--prefill-chunk`, unless told otherwise
_NEAR = 256  # tokens: what a row takes is known for each so many in front of it


class PromptOrder:
    """The order of the prompts that are being read."""

    def __init__(self, tile: int, tenants: Tenants) -> None:
        """`tile`: rows for which attention is computed at once."""
        self._tile, self._tenants = tile, tenants
        self._readers: dict[str, _Reader] = {}  # tenants that have prompts
        self._took: dict[str, float] = {}  # milliseconds of steps over its weight, by tenant
        self._num_in_a_row = 0
        self._last_rows, self._row_ms = 0, 0.0  # of the last step that read as much as it might
        # by whether a step had whole tiles, and by tokens in front of a row: its milliseconds, and
        # how many tokens there were
        self._paces: dict[bool, dict[int, tuple[float, int]]] = {True: {}, False: {}}
        self.most_rest = tile - 1  # rows that a step may have beyond, so that they need no other

    def num_rows(self, least: int, most: int, milliseconds: float) -> int:
        """Prompt rows of the next step.

        At least `least` whatever they take, then twice as many as long as they are expected to
        take no more than `milliseconds`, up to `most` and to twice those of the last step.
        """
        rows = min(least, most)
        while rows <= self._last_rows and rows < most and 2 * rows * self._row_ms <= milliseconds:
            rows = min(2 * rows, most)
        return rows

    def limit(
        self, prompts: list[Sequence], running: list[Sequence], config: SchedulerConfig, most: int
    ) -> int:
        """Most prompt rows of the next step: few while tenants wait for the next token of an
        answer, unless all of these give way to the tenant whose prompts come first; and no more
        than that one has, if those give way whose prompts would follow in the same step.
        """
        first = self._by_tenant([one for one in prompts if one.leader is None] or prompts)[0]
        tenant, num_pending = first[0].tenant, sum(sequence.num_pending for sequence in first)
        answering = {sequence.tenant for sequence in running if sequence.is_generating}
        others = answering or {sequence.tenant for sequence in prompts} - {tenant}
        gives_way = bool(others) and all(self._tenants.gives_way(one, tenant) for one in others)
        milliseconds = _MILLISECONDS if config.prefill_ms is None else config.prefill_ms
        self.most_rest = self._tile - 1
        if not answering:
            rows = self.num_rows(_ALONE, most, _ALONE_SHARE * milliseconds)
            return min(rows, max(config.prefill_chunk, num_pending)) if gives_way else rows
        rows = self.num_rows(config.prefill_chunk, most, milliseconds)
        if self._row_ms and gives_way:
            milliseconds *= _ALONE_SHARE
            rows = max(rows, min(_ALONE, most, int(milliseconds / self._row_ms), num_pending))
        return self._within(milliseconds, rows, prompts) if config.prefill_ms else rows

    def _within(self, milliseconds: float, rows: int, prompts: list[Sequence]) -> int:
        """So many of these rows that they take no longer: whole tiles, or less than one."""
        reading = [one for one in prompts if one.leader is None] or prompts
        shares = self.share(reading, rows, [one for one in prompts if one.leader is not None])
        context, tile = _context(shares, [one.num_decoded for one in reading]), self._tile
        in_tiles, alone = (self._pace(is_whole, context) for is_whole in (True, False))
        if rows >= tile and tile * in_tiles <= milliseconds:
            num_tiles = int(milliseconds / in_tiles / tile) if in_tiles else 1
            self.most_rest = (tile - 1) * (rows // tile < num_tiles)
            return min(rows, num_tiles * tile)
        self.most_rest = 0
        return max(1, min(rows, tile - 1, int(milliseconds / alone) if alone else 1))

    def _pace(self, is_whole: bool, context: int) -> float:
        """Milliseconds of a row behind so many tokens, at most; 0: none was read."""
        paces, place = self._paces[is_whole], context // _NEAR
        near = max((one for one in paces if one <= place), default=min(paces, default=0))
        row_ms, known = paces.get(near, (0.0, 0))
        # tokens whose attention is taken to last as long as the rest of a row
        rest = max(64, 8 * self._tile * is_whole)
        return row_ms * max(1.0, (context + rest) / (known + rest))

    def share(
        self,
        reading: list[Sequence],
        num_rows: int,
        followers: list[Sequence],
    ) -> list[int]:
        """Rows of each prompt in a step of `num_rows`; `reading` is in the order of admission.

        A prompt that a shorter one waits for, because they begin alike, comes as early as that.
        """
        # tiles read in a row before another prompt has its turn
        in_a_row = 4 * self._tile if num_rows >= self._tile else 0
        self._num_in_a_row = max(num_rows, in_a_row)
        lengths, rows, left = _lengths(reading, followers), dict[Sequence, int](), num_rows
        for own in self._by_tenant(reading):
            reader = self._readers[own[0].tenant]
            own.sort(key=lengths.__getitem__)
            if reader.is_oldest_first:
                own.sort(key=lambda one: one is not reader.oldest)
            for one in own:
                # a piece of less than a tile would take as long as a whole one, here and in the
                # next step
                if one.num_pending > left and left < min(self._tile, num_rows):
                    continue
                rows[one] = min(left, one.num_pending)
                left -= rows[one]
        return [rows.get(one, 0) for one in reading]

    def count(self, plan: StepPlan, milliseconds: float) -> None:
        """Note what a step did in how long, before any of its prompts begins to answer."""
        num = plan.num_generating
        num_read = sum(plan.num_rows[num:])
        if 2 * num_read >= plan.max_prompt_rows > 0:  # not the short rest of a prompt
            # what it might: a step of whole tiles has some rows more or fewer
            self._last_rows, self._row_ms = plan.max_prompt_rows, milliseconds / num_read
        if num_read:
            context = _context(plan.num_rows[num:], plan.starts[num:])
            is_whole = sum(plan.num_rows) + plan.num_padding >= self._tile
            self._paces[is_whole][context // _NEAR] = milliseconds / num_read, context
        row_ms, readers = milliseconds / (sum(plan.num_rows) or 1), dict[str, _Reader]()
        for index, sequence in plan.decoded:
            tenant, num_rows = sequence.tenant, plan.num_rows[index]
            took = num_rows * row_ms / self._tenants.weight(tenant)
            self._took[tenant] = self._took.get(tenant, 0.0) + took
            if index >= num:
                reader = readers[tenant] = self._readers[tenant]
                reader.num_owed += -num_rows if sequence is reader.oldest else num_rows
        for tenant, reader in self._readers.items():
            reader.waited = 0.0 if tenant in readers else reader.waited + milliseconds
        for reader in readers.values():
            reader.num_owed = max(0, reader.num_owed)
            if not reader.is_oldest_first:
                reader.is_oldest_first = reader.num_owed >= self._num_in_a_row > 0
            elif not reader.num_owed:
                reader.is_oldest_first = False

    def _by_tenant(self, reading: list[Sequence]) -> list[list[Sequence]]:
        """The prompts of each tenant; whose turn it is first."""
        own = defaultdict[str, list[Sequence]](list)
        for sequence in reading:
            own[sequence.tenant].append(sequence)
        known = {reader.oldest: reader for reader in self._readers.values()}
        self._readers = {
            name: known.get(prompts[0]) or _Reader(prompts[0]) for name, prompts in own.items()
        }
        ahead = _ALONE * self._row_ms
        least = max(self._took.values(), default=0.0) - ahead
        took = dict.fromkeys(own, least) | self._took
        self._took = {
            name: max(took[name], least) for name in took if name in own or took[name] > least
        }

        def rank(name: str) -> tuple[bool, float, float]:
            is_late = self._readers[name].waited > 2 * ahead
            return not is_late, self._took[name], self._tenants.load(name)

        return [own[name] for name in sorted(own, key=rank)]


@dataclass(slots=True)
class _Reader:
    """A tenant whose prompts are read, while one of them is the oldest."""

    oldest: Sequence
    waited: float = 0.0  # milliseconds since it had rows
    num_owed: int = 0  # rows that the others read, less those of the oldest
    is_oldest_first: bool = False


def _context(num_rows: list[int], starts: list[int]) -> int:
    """Tokens in front of a row on average."""
    attended: int = sum(map(mul, num_rows, starts))
    return attended // max(1, sum(num_rows))


def _lengths(reading: list[Sequence], followers: list[Sequence]) -> dict[Sequence, int]:
    """What is left of each prompt, or of the shortest one that waits for it."""
    lengths = {sequence: sequence.num_pending for sequence in reading}
    for follower in followers:
        leader = follower
        while leader.leader is not None:
            leader = leader.leader
        if leader in lengths:
            lengths[leader] = min(lengths[leader], follower.num_pending)
    return lengths
