"""Which requests may wait for cells at all."""

from __future__ import annotations

from headstart.types import Engine
from headstart.types.errors import CapacityError, ContextLengthError, InvalidParameterError
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
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= engine.vocab_size:
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


def check_queue(num_waiting: int, num_free: int, max_queue: int) -> None:
    """Refuse a request when too many wait that no free slot will take.

    Raises:
        CapacityError: they do.
    """
    if num_waiting >= max_queue + num_free:
        raise CapacityError(
            f"{num_waiting} requests are waiting and --max-queue is {max_queue}; try again later"
        )
