"""Slot actions: save its prompt to a file, restore it, erase it, and end the thoughts of its
answer.

The files have libllama's format, so llama-server reads ours and vice versa.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from math import inf
from pathlib import Path
from typing import Any

from headstart.scheduler.prompt_cache import PromptCache
from headstart.scheduler.prompt_store import StoredBlock, StoredPrompt
from headstart.scheduler.sequence import Cells, Sequence
from headstart.structures import sequence_files
from headstart.structures.prefix import packed
from headstart.structures.sequence_files import SavedSequence
from headstart.structures.system import start_threads
from headstart.types import Engine
from headstart.types.errors import CapacityError, EngineError, RequestError
from headstart.types.media import MediaStore
from headstart.types.request import (
    UNKNOWN_ANSWER,
    ErrorEvent,
    ReplyEvent,
    SlotAction,
    ThoughtsEnd,
)

Steps = Generator[Future[Any], None, ReplyEvent]
"""An action on a slot: it yields work for a thread, and continues once that is done."""


class SlotActions:
    """Performs one action after another, between steps. Files are read, checked and written in a
    thread, so that no step waits for a disk.
    """

    def __init__(self, cache: PromptCache, engine: Engine, clock: Callable[[], float]) -> None:
        self._cache, self._engine, self._clock = cache, engine, clock
        self._offloading = cache.offloading
        self._thread = start_threads("slots")
        self.media: MediaStore | None = None  # if the model reads images
        self.waiting: deque[tuple[SlotAction, Steps]] = deque()
        self.file: Future[Any] | None = None  # awaited by the first action

    def add(self, action: SlotAction) -> None:
        self.waiting.append((action, self._perform(action)))

    def go_on(self) -> list[ReplyEvent | ErrorEvent]:
        """Perform actions up to the next file operation; returns the events of finished ones."""
        events: list[ReplyEvent | ErrorEvent] = []
        while self.waiting and (self.file is None or self.file.done()):
            (action, steps), self.file = self.waiting[0], None
            try:
                self.file = next(steps)
                continue
            except StopIteration as over:
                events.append(over.value)
            except (CapacityError, EngineError, RequestError) as refused:
                events.append(ErrorEvent(action.request_id, refused))
            except MemoryError:
                full = EngineError("there is not enough main memory for the state of a slot")
                events.append(ErrorEvent(action.request_id, full))
            self.waiting.popleft()
        return events

    def _perform(self, action: SlotAction) -> Steps:
        """Perform one action.

        Raises:
            CapacityError: the slot is in use, or there is no room for its prompt.
            RequestError: there is no such slot, or the file cannot be used.
            EngineError: the file cannot be written.
        """
        engine, started = self._engine, self._clock()
        cells = self._idle(action.slot_id)
        is_theirs = cells.namespace == action.namespace  # otherwise treated as empty
        num_tokens = num_bytes = 0
        path = Path(action.path)
        if action.action == "restore":
            reading = self._thread.submit(
                sequence_files.read, path, engine.context_size, engine.vocab_size
            )
            yield reading
            saved = reading.result()
            if self.media is None and min(saved.tokens, default=0) < 0:
                raise RequestError(
                    f"Cannot restore media tokens without an mmproj: {path.name} has images or "
                    "sounds, and no request can ask for them again; start with --mmproj"
                )
            self._restore(self._idle(action.slot_id), saved, path.name, action.namespace)
            num_tokens, num_bytes = len(saved.tokens), saved.num_bytes
        elif action.action == "erase" and is_theirs:
            num_tokens = self._erase(cells)
        elif action.action == "save":
            if not is_theirs:
                raise RequestError(f"slot {cells.seq_id} keeps no prompt of yours to save")
            self._recall(cells)
            num_tokens, state = cells.length, engine.save_sequence(cells.seq_id)
            writing = self._thread.submit(
                sequence_files.write, path, cells.tokens[:num_tokens], state, cells.num_exact
            )
            yield writing
            num_bytes = writing.result()
        done = num_tokens, num_bytes, self._clock() - started
        return ReplyEvent(action.request_id, done)

    def _idle(self, slot_id: int) -> Cells:
        all_cells = self._cache.cells
        if not 0 <= slot_id < len(all_cells):
            raise RequestError(f"id_slot is {slot_id} but the slots are 0 to {len(all_cells) - 1}")
        if all_cells[slot_id].user is not None:
            raise CapacityError(f"slot {slot_id} is used by a request; try again when it is idle")
        return all_cells[slot_id]

    def _recall(self, cells: Cells) -> None:
        """Restore what was moved out of an idle slot, because a client asks for that slot's prompt.

        Raises:
            CapacityError: there is no room for it now.
        """
        stored, num_tokens = self._moved_out_of(cells)
        if stored is None:
            return
        if not self._bring_back(stored, cells):
            raise CapacityError(
                f"the prompt of slot {cells.seq_id} is in main memory and the cache has no room "
                f"for its {len(stored.tokens)} tokens; try again when a request is over"
            )
        length = self._engine.rewind(cells.seq_id, num_tokens)
        cells.hold(cells.tokens[:length], num_prompt=stored.num_prompt)

    def _bring_back(self, stored: StoredPrompt, cells: Cells) -> bool:
        """Restore a prompt into an idle slot within this step, because a client asks for that. The
        slot's contents move to main memory, and so do others' if they take its room. Returns False
        if there is none; then the slot is empty.
        """
        offloading = self._offloading
        offloading.begin_step(inf)
        offloading.keep(cells)
        offloading.empty(cells)
        while not (is_there := offloading.restore(stored, cells, len(stored.tokens))):
            offloading.empty(cells)
            if not (self._engine.lacks_cells and offloading.evict()):
                break
        if is_there:
            cells.hold(list(stored.tokens), num_prompt=stored.num_prompt)
            cells.namespace, cells.is_private = stored.namespace, stored.is_private
            self._cache.note_use(cells)
        offloading.begin_step(0.0)
        return is_there

    def _erase(self, cells: Cells) -> int:
        """Erase an idle slot's prompt, wherever it is stored; returns its number of tokens."""
        num_tokens = cells.length or self._moved_out_of(cells)[1]
        if self._offloading.disk is not None:
            self._offloading.disk.erase(cells.namespace, cells.packed)
        self._offloading.store.erase(cells.namespace, cells.packed)
        self._engine.clear(cells.seq_id)
        cells.hold([])
        return num_tokens

    def _moved_out_of(self, cells: Cells) -> tuple[StoredPrompt | None, int]:
        """The stored prompt that begins with what was moved out of a slot, and its length.

        None and 0 if nothing was, or if it was evicted.
        """
        tokens = packed(()) if cells.length else cells.packed
        stored, num_shared = self._offloading.store.find(cells.namespace, tokens)
        return (stored, num_shared) if num_shared == len(tokens) else (None, 0)

    def _restore(self, cells: Cells, saved: SavedSequence, name: str, namespace: str) -> None:
        num_tokens = len(saved.tokens)
        whole = StoredBlock(0, num_tokens, saved.data)
        stored = StoredPrompt(namespace, packed(saved.tokens), (whole,), num_tokens)
        if self._bring_back(stored, cells):
            cells.num_exact = saved.num_exact
        elif self._engine.lacks_cells:
            raise CapacityError(
                f"the cache has no room for {name} beside the requests that run; try again when "
                "one is over"
            )
        else:
            raise RequestError(
                f"{name} cannot be restored: it is damaged, of another model or of other cache "
                "types"
            )


def end_thoughts(command: ThoughtsEnd, running: Iterable[Sequence]) -> str:
    """End the thoughts of a running answer; returns the reason if that is not possible."""
    for sequence in running:
        request, sampler = sequence.request, sequence.sampler
        if request.request_id != command.answer:
            continue
        if not request.namespace.startswith(command.namespace):
            continue
        if sampler.thoughts is None:
            return "reasoning control not enabled for this completion"
        sampler.thoughts.end()
        return ""
    return UNKNOWN_ANSWER
