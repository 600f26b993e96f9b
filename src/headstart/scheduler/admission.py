"""Which requests may wait for cells at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headstart.scheduler.sequence import Sequence
from headstart.structures.tenants import who_gives_way
from headstart.types import Engine
from headstart.types.errors import (
    CapacityError,
    ContextLengthError,
    InvalidParameterError,
    QuotaError,
)
from headstart.types.media import LoadedChunk, MediaStore
from headstart.types.request import Request


def check(request: Request, engine: Engine, num_slots: int) -> None:
    """Refuse a request that can never run.

    Raises:
        ContextLengthError, InvalidParameterError: why.
    """
    prompt = request.prompt
    if not len(prompt):
        raise InvalidParameterError("the prompt has no tokens; send some text")
    if len(prompt) >= engine.context_size:
        raise ContextLengthError(len(prompt), engine.context_size)
    if prompt[-1] < 0 and request.media:
        raise InvalidParameterError("the prompt ends with an image; put some text behind it")
    num_cells = sum(chunk.num_cells for _, chunk in request.media)
    low, high = min(prompt), max(prompt)
    if (low < 0 and sum(token < 0 for token in prompt) != num_cells) or high >= engine.vocab_size:
        wrong = low if low < 0 else high
        raise InvalidParameterError(
            f"token id {wrong} is not in the vocabulary (0 to {engine.vocab_size - 1})"
        )
    if (bias := request.sampling.logit_bias) and not all(0 <= i < engine.vocab_size for i in bias):
        raise InvalidParameterError(
            f"logit_bias names a token that is not in the vocabulary (0 to {engine.vocab_size - 1})"
        )
    if request.slot_id is not None and not 0 <= request.slot_id < num_slots:
        raise InvalidParameterError(
            f"id_slot is {request.slot_id} but the slots are 0 to {num_slots - 1}"
        )


def find_media(request: Request, store: MediaStore | None) -> tuple[tuple[int, LoadedChunk], ...]:
    """The images of a request.

    Raises:
        CapacityError: they were forgotten.
    """
    found = [(start, store.find(chunk)) for start, chunk in request.media if store is not None]
    known = tuple((start, chunk) for start, chunk in found if chunk is not None)
    if len(known) < len(request.media):
        raise CapacityError(
            "an image of this request was forgotten because too many others came after it; send "
            "the request again"
        )
    return known


def make_place(
    sequence: Sequence, waiting: list[Sequence], max_queue: int, seconds: float
) -> tuple[Sequence, QuotaError]:
    """Which request leaves a full queue for another tenant's, and what it is told.

    Args:
        seconds: that the queue takes to move on by one request.

    Raises:
        CapacityError: none, because the tenant of the new one has as many as any other.
    """
    last = find_surplus((one for one in waiting if not one.is_resumed), sequence.tenant)
    if last is None:
        raise CapacityError(
            f"{len(waiting)} requests are waiting and --max-queue is {max_queue}; try again later"
        )
    num_own = sum(one.tenant == last.tenant for one in waiting)
    wait = min(60, max(1, round(num_own * seconds)))
    return last, QuotaError(
        "queue",
        f"{num_own} of {len(waiting)} waiting requests are yours and --max-queue is {max_queue}: "
        f"this one made room for another tenant; try again in {wait} s",
        wait,
    )


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
        if len(self._served) > 1000:  # one that was served longer ago counts as new
            del self._served[next(iter(self._served))]
