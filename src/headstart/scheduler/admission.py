"""Admission control: which requests may wait for cells, and which tenant's request is next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from headstart.scheduler.sequence import Sequence
from headstart.structures.prefix import packed
from headstart.types import Engine
from headstart.types.errors import CapacityError, ContextLengthError, QuotaError, RequestError
from headstart.types.media import LoadedChunk, MediaChunk, MediaStore
from headstart.types.request import Request


def check(request: Request, engine: Engine, num_slots: int) -> None:
    """Refuse a request that can never run.

    Raises:
        ContextLengthError, RequestError: why.
    """
    prompt = request.prompt
    if not len(prompt):
        raise RequestError("the prompt has no tokens; send some text")
    if len(prompt) >= engine.context_size:
        raise ContextLengthError(len(prompt), engine.context_size)
    if prompt[-1] < 0 and request.media:
        raise RequestError("the prompt ends with an image; put some text after it")
    num_cells = sum(chunk.num_cells for _, chunk in request.media)
    tokens = np.frombuffer(packed(prompt), np.intc)
    low, high = tokens.min(), tokens.max()
    if (low < 0 and (tokens < 0).sum() != num_cells) or high >= engine.vocab_size:
        wrong = low if low < 0 else high
        raise RequestError(
            f"token id {wrong} is not in the vocabulary (0 to {engine.vocab_size - 1})"
        )
    bias = request.sampling.logit_bias
    if len(bias) and not 0 <= bias.ids.min() <= bias.ids.max() < engine.vocab_size:
        raise RequestError(
            f"logit_bias names a token that is not in the vocabulary (0 to {engine.vocab_size - 1})"
        )
    if request.slot_id is not None and not 0 <= request.slot_id < num_slots:
        raise RequestError(f"id_slot is {request.slot_id} but the slots are 0 to {num_slots - 1}")


def find_media(
    media: Collection[tuple[int, MediaChunk]], store: MediaStore | None
) -> tuple[tuple[int, LoadedChunk], ...]:
    """Look up the loaded chunks of a request's media; returns them with their positions.

    Raises:
        CapacityError: they were evicted.
    """
    found = [(number, store.find(chunk)) for number, chunk in media if store is not None]
    known = tuple((number, chunk) for number, chunk in found if chunk is not None)
    if len(known) < len(media):
        raise CapacityError(
            "an image of this request was forgotten because too many others came after it; send "
            "the request again"
        )
    return known


class Tenants:
    """Fair order of tenants: the requests of each, and the turns each has had."""

    def __init__(self) -> None:
        self._held = Counter[str]()  # requests, waiting and running
        # by tenant, when its next turn comes. Source: Parekh and Gallager 1993, "A generalized
        # processor sharing approach to flow control", https://doi.org/10.1109/90.234856
        self._due: dict[str, float] = {}
        self._now = 0.0  # virtual time: turns of a tenant that always has requests waiting

    @property
    def are_several(self) -> bool:
        """Whether more than one tenant has requests."""
        return len(self._held) > 1

    def add(self, tenant: str) -> None:
        """Count a new request. A tenant that was idle is scheduled ahead of tenants just served."""
        if not self._held[tenant]:
            self._due[tenant] = max(self._due.get(tenant, 0.0), self._now - 1.0)
        self._held[tenant] += 1

    def remove(self, tenant: str) -> None:
        """Count a request that ended."""
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        if len(self._due) > 1000 + len(self._held):  # tenants ahead of their share are kept
            due = self._due.items()
            self._due = {one: at for one, at in due if one in self._held or at > self._now}

    def charge_turn(self, tenant: str) -> None:
        """Charge the tenant for a request that starts."""
        self._now += 1.0 / len(self._held)
        self._due[tenant] += 1.0

    def num_held(self, tenant: str) -> int:
        """Number of the tenant's requests."""
        return self._held[tenant]

    def order(self, waiting: Iterable[Sequence], running: Iterable[Sequence]) -> list[Sequence]:
        """Round robin over tenants: the first request of each, then the second ..., counting
        running ones.

        Ties go to the tenant whose turn comes first. Requests of one tenant are ordered by
        priority, then by arrival.
        """
        ranks = Counter(one.tenant for one in running)
        places: dict[Sequence, tuple[int, float]] = {}
        for sequence in sorted(waiting, key=own_rank):
            tenant = sequence.tenant
            places[sequence] = ranks[tenant], self._due[tenant]
            ranks[tenant] += 1
        return sorted(places, key=places.__getitem__)

    def gives_way(self, tenant: str, other: str, held: Mapping[str, int] | None = None) -> bool:
        """Whether moving one request from `tenant` to `other` still leaves `tenant` with at least
        as many.

        Args:
            held: requests of each; all they have if left out.
        """
        held = self._held if held is None else held
        return held.get(tenant, 0) - 1 >= held.get(other, 0) + 1

    def find_surplus(
        self,
        sequences: Iterable[Sequence],
        tenant: str,
        asking: Iterable[Sequence] = (),
        spared: int | None = None,
    ) -> Sequence | None:
        """The last of `sequences` of the tenant with the most, if that gives way to `tenant`.

        Args:
            asking: sequences that get a place too, the new one among them.
            spared: number of one that stays; its tenant has others if it gives way.
        """
        sequences = list(sequences)
        held = Counter(one.tenant for one in sequences)
        most = max(held, key=held.__getitem__, default=tenant)
        held[tenant] += max(0, sum(one.tenant == tenant for one in asking) - 1)
        if not self.gives_way(most, tenant, held):
            return None
        own = (one for one in sequences if one.tenant == most)
        return max(own, key=lambda one: (one.number != spared, own_rank(one)))

    def make_place(
        self, sequence: Sequence, waiting: list[Sequence], max_queue: int, seconds: float
    ) -> tuple[Sequence, QuotaError]:
        """Choose a request to evict from a full queue; returns it with the error it gets.

        Args:
            seconds: mean time until the queue advances by one request.

        Raises:
            CapacityError: the new request's tenant has as many as any other.
        """
        last = self.find_surplus((one for one in waiting if not one.is_resumed), sequence.tenant)
        if last is None:
            raise CapacityError(
                f"{len(waiting)} requests are waiting and --max-queue is {max_queue}; try again "
                "later"
            )
        num_own = sum(one.tenant == last.tenant for one in waiting)
        wait = min(60, max(1, round(num_own * seconds)))
        return last, QuotaError(
            "queue",
            f"{num_own} of {len(waiting)} waiting requests are yours and --max-queue is "
            f"{max_queue}: this one made room for another tenant; try again in {wait} s",
            wait,
        )


def own_rank(sequence: Sequence) -> tuple[int, int]:
    """Rank of a request among those of its tenant: by priority, then by arrival."""
    return sequence.request.priority, sequence.number
