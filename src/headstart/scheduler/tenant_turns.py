"""The order in which waiting requests are admitted: the tenants in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headstart.scheduler.sequence import Sequence
from headstart.structures.tenants import who_gives_way

_MOST_TENANTS = 1000  # remembered; one that was served longer ago counts as new


def find_surplus(sequences: Iterable[Sequence], tenant: str) -> Sequence | None:
    """The newest request of the tenant that has most of these, if that is at least two more than
    this tenant has.
    """
    sequences = list(sequences)
    most = who_gives_way(Counter(one.tenant for one in sequences), tenant)
    own = (one for one in sequences if one.tenant == most)
    return max(own, key=lambda one: one.number, default=None)


def find_largest(running: Iterable[Sequence]) -> Sequence:
    """The newest request of the tenant whose requests take most cells."""
    sequences, held = list(running), Counter[str]()
    for one in sequences:
        held[one.tenant] += one.num_decoded
    most = max(held, key=held.__getitem__)
    return max((one for one in sequences if one.tenant == most), key=lambda one: one.submitted)


class TenantTurns:
    """Remembers which tenant was served longest ago."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}  # tenant -> number of its last turn, increasing
        self._num_turns = 0

    def order(self, waiting: Iterable[Sequence], running: Iterable[Sequence]) -> list[Sequence]:
        """The first request of each tenant, then the second ..., those that run included.

        The tenant that was served longest ago is the first in each round. The requests of a tenant
        keep their order.
        """
        ranks = Counter(one.tenant for one in running)
        places: dict[Sequence, tuple[int, int]] = {}
        for sequence in waiting:
            tenant = sequence.tenant
            ranks[tenant] += 1
            places[sequence] = (ranks[tenant], self._served.get(tenant, 0))
        return sorted(places, key=places.__getitem__)

    def serve(self, sequence: Sequence) -> None:
        """Note that the tenant has had its turn."""
        self._num_turns += 1
        tenant = sequence.tenant
        self._served.pop(tenant, None)
        self._served[tenant] = self._num_turns
        if len(self._served) > _MOST_TENANTS:
            del self._served[next(iter(self._served))]
