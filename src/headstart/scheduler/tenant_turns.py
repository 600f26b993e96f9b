"""The order in which waiting requests are admitted: the tenants in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headstart.scheduler.sequence import Sequence

_MOST_TENANTS = 1000  # remembered; one that was served longer ago counts as new


class TenantTurns:
    """Remembers which tenant was served longest ago."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}  # tenant -> number of its last turn, increasing
        self._num_turns = 0

    def order(self, waiting: Iterable[Sequence]) -> list[Sequence]:
        """Preempted requests, then one request of each tenant, then the second of each ...

        The tenant that was served longest ago is the first in each round. The requests of a tenant
        keep their order.
        """
        ranks: Counter[str] = Counter()
        places: dict[Sequence, tuple[int, int]] = {}
        for sequence in waiting:
            tenant = sequence.tenant
            places[sequence] = (0, 0)
            if not sequence.is_resumed:
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
