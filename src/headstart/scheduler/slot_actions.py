"""What users may do with a slot: keep its prompt in a file, bring it back, forget it, and end the
thoughts of its answer.

The files are libllama's own, so llama-server reads ours and we read its.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from headstart.scheduler.prompt_cache import PromptCache
from headstart.scheduler.sequence import Cells, Sequence
from headstart.types import ContextFullError, Engine
from headstart.types.errors import CapacityError, InvalidParameterError, NotSupportedError
from headstart.types.request import SlotAction, SlotEvent, ThoughtsEnd


def perform(
    action: SlotAction, cache: PromptCache, engine: Engine, clock: Callable[[], float]
) -> SlotEvent:
    """Do it between two steps.

    Raises:
        CapacityError: a request uses the slot, or there is no room for its prompt.
        InvalidParameterError: there is no such slot, or the file cannot be used.
        EngineError: the file cannot be written.
    """
    if not 0 <= action.slot_id < len(cache.cells):
        raise InvalidParameterError(
            f"id_slot is {action.slot_id} but the slots are 0 to {len(cache.cells) - 1}"
        )
    cells, started = cache.cells[action.slot_id], clock()
    if cells.user is not None:
        raise CapacityError(f"slot {cells.seq_id} is used by a request; try again when it is idle")
    is_theirs = cells.namespace == action.namespace  # if not, as if nothing were there
    num_tokens = num_bytes = 0
    path = Path(action.path)
    if action.action == "restore":
        num_tokens, num_bytes = _restore(cells, path, cache, engine)
        cells.namespace = action.namespace
    elif action.action == "erase" and is_theirs:
        num_tokens = cache.host.erase(cells) or cells.length
        cache.empty(cells)
    elif action.action == "save":
        if not is_theirs:
            raise InvalidParameterError(f"slot {cells.seq_id} keeps no prompt of yours to save")
        cache.host.recall(cells)
        if min(cells.tokens, default=0) < 0:
            raise NotSupportedError(f"slot {cells.seq_id} holds an image, which no file can hold")
        num_tokens = cells.length
        num_bytes = engine.write_sequence(cells.seq_id, path, cells.tokens, cells.num_exact)
    return SlotEvent(action.request_id, num_tokens, num_bytes, clock() - started)


def _restore(cells: Cells, path: Path, cache: PromptCache, engine: Engine) -> tuple[int, int]:
    """Read a file into a slot; its tokens and bytes. What it holds goes to main memory."""
    cache.host.keep(cells)
    cache.host.forget(cells)
    cells.hold([])
    while True:
        try:
            saved = engine.read_sequence(cells.seq_id, path)
        except ContextFullError as error:
            if not cache.evict():
                raise CapacityError(
                    f"the cache has no room for {path.name} beside the requests that run; try "
                    "again when one is over"
                ) from error
        else:
            cells.hold(saved.tokens, saved.num_exact)
            return len(saved.tokens), saved.num_bytes


def end_thoughts(command: ThoughtsEnd, running: Iterable[Sequence]) -> str:
    """End the thoughts of a running answer; returns why not."""
    for sequence in running:
        request, sampler = sequence.request, sequence.text.sampler
        if request.request_id != command.answer:
            continue
        if not request.namespace.startswith(command.namespace):
            continue
        if sampler is None or sampler.thoughts is None:
            return "reasoning control not enabled for this completion"
        sampler.thoughts.end()
        return ""
    return "no active completion for this id"
