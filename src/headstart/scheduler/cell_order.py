"""Which requests have the cells of a full context, all in one order.

Where a decode finds no room, the last of the running requests gives up its cells. While requests
wait for cells, one starts if it fits beside those that run and come before it; those behind it have
to give up theirs.

First comes the request that has the turn, then the others by the cells that their tenant claims up
to and including them; those of one tenant by priority, then by arrival. So the tenant that holds
most gives some up. One that starts claims what it may grow by, too, up to an eighth of
all cells.

A turn lasts until its request has emitted TURN tokens, or an eighth of all cells if that is more,
since up to all cells are decoded again for it. If it ends earlier its tenant goes on with the next
one until as many steps have passed; to read as many tokens as there are cells counts as a whole
turn. The first running request has the first turn. Then comes the
tenant that waits longest, for cells or since its last turn, with its request that waits longest.
So a request that begins to wait when n tenants and k requests of its own tenant do has a turn after
at most n (k + 1) others, however many come later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from headstart.scheduler.admission import own_rank
from headstart.scheduler.sequence import Sequence

TURN = 256  # tokens


class CellOrder:
    """The order, and whose turn it is."""

    def __init__(self, num_cells: int) -> None:
        # number of the request that has the turn: a reference would keep it in memory
        self.first: int | None = None
        self._turn = max(TURN, num_cells // 8)
        self._until = 0  # tokens that `first` has emitted at the end of its turn
        self._tenant, self._num_steps = "", self._turn  # of the turn
        self._last_turns: dict[str, float] = {}  # by tenant; clock readings
        self._num_cells = num_cells
        self._spare = num_cells // 8  # that must be free for a text that starts to grow into

    def last(self, running: Iterable[Sequence]) -> Sequence:
        """The request that gives up its cells."""
        return self._sorted(running)[-1]

    def pass_turn(self, waiting: list[Sequence], running: list[Sequence], now: float) -> None:
        """If the turn is over, give it to the next request, unless none waits for one."""
        everyone = running + waiting
        holder = next((one for one in everyone if one.number == self.first), None)
        self._num_steps += 1
        if holder is not None and holder.num_emitted < self._until:
            return
        line = [one for one in everyone if one.held_since is not None]
        if not line:
            self.first, self._num_steps = None, self._turn
            return
        goes_on = holder is None and self._num_steps < self._turn
        own = [one for one in running + line if goes_on and one.tenant == self._tenant]
        if own:
            chosen = min(own, key=own_rank)
            if chosen.cells is None:
                self._num_steps += len(chosen.tokens) * self._turn // self._num_cells
        else:
            chosen = min(line, key=self._waits_since)
            if self.first is None and running:  # one preempted just now would preempt in its turn
                chosen = self._sorted(running)[0]
            self._tenant, self._num_steps = chosen.tenant, 0
        self.first, self._until = chosen.number, chosen.num_emitted + self._turn
        tenants = {one.tenant for one in everyone}
        self._last_turns = {one: at for one, at in self._last_turns.items() if one in tenants}
        self._last_turns[self._tenant], chosen.held_since = now, None

    def may_start(
        self, waiting: Iterable[Sequence], running: list[Sequence], now: float
    ) -> Iterator[Sequence]:
        """The waiting requests for which there are cells beside those that run by then; first the
        one that has the turn. The others note that they wait for cells.
        """
        order = sorted(waiting, key=lambda one: one.number != self.first)
        is_full = any(one.held_since is not None for one in order)
        # claims that do not fit: a larger one of a tenant comes after at least as many others, and
        # so does one of any other tenant, if neither has running ones (None)
        too_long = dict[str | None, int]()
        busy = {one.tenant for one in running}
        for sequence in order:
            claim, tenant = self._claim(sequence), sequence.tenant
            alike = tenant if tenant in busy else None
            is_short = claim < too_long.get(alike, claim + 1)
            if not is_full or (is_short and self._fits(sequence, running)):
                yield sequence
                busy.add(tenant)  # it may run now
                continue
            if is_short:
                too_long[alike] = claim
            if sequence.held_since is None:
                sequence.held_since = now

    def _fits(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Whether there is room beside those before it. Cells count once for each request that
        shares them, so it may wait although there is room, but not in its turn.
        """
        order = self._sorted([*running, sequence])
        before = order[: order.index(sequence)]
        return not before or sum(map(self._claim, [*before, sequence])) <= self._num_cells

    def _claim(self, sequence: Sequence) -> int:
        """Cells that it holds, or needs in order to start."""
        if sequence.cells is not None:
            return len(sequence.tokens)
        return len(sequence.tokens) + min(self._spare, max(0, sequence.num_left))

    def _sorted(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        held, places = Counter[str](), dict[Sequence, tuple[bool, int]]()
        for one in sorted(sequences, key=own_rank):
            held[one.tenant] += self._claim(one)
            places[one] = one.number != self.first, held[one.tenant]
        return sorted(places, key=places.__getitem__)

    def _waits_since(self, sequence: Sequence) -> tuple[float, float]:
        """When both its tenant and it had begun to wait for a turn; and when it had."""
        since = sequence.held_since or 0.0
        return max(since, self._last_turns.get(sequence.tenant, since)), since
