"""The sequences in the cache of one context, and how far each can be rolled back.

libllama accepts some truncations that silently leave a wrong state, and aborts on others; the rules
here allow only the sound ones. They follow from each `CacheKind`.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import numpy as np

from headstart.engine.c_batch import c_batch
from headstart.engine.devices import FLASH_TILE
from headstart.engine.gaps import Gaps
from headstart.engine.library import api, libllama_error, muted, take_errors
from headstart.engine.prompt_reader import PromptReader
from headstart.structures.checkpoints import Checkpoints
from headstart.types import Batch, Bytes, CacheKind, Checkpoint, SavedState
from headstart.types.errors import EngineError

log = logging.getLogger(__name__)

_WHOLE, _PARTIAL = 0, 1  # contents of a state: everything, or only what cannot be truncated
_IN_PLACE = 3  # only what cannot be truncated, left on the device


class Sequences:
    """The sequences of a context's cache, as `Engine` specifies; `LlamaEngine` adds decoding."""

    cache_kind: CacheKind
    max_padding: int  # tokens of one decode that ROLLBACK can drop
    window: int  # tokens that sliding windows see; 0: none
    has_own_caches: bool  # each sequence has its own cache

    def __init__(self, context: Any, checkpoints: Checkpoints, spare: int | None) -> None:
        """`spare`: a sequence not used by requests."""
        self.checkpoints = checkpoints
        self.padding_sequence, self._spare = spare, -1 if spare is None else spare
        self._context = context
        self._memory = api.llama_get_memory(context)
        self.reader: PromptReader | None = None  # has the prompts that are decoded separately
        self._last_rows: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self.gaps = Gaps()
        self._sharing: dict[int, int] = {}  # how many of its first cells others may share
        # pending copies between caches, and shifts, which libllama defers to the next decode
        self.has_copies = self.has_shifts = False
        self.lacks_cells = False  # whether the last failed restore lacked free cells

    def note_rows(self, seq_id: int, num_rows: int, length: int) -> None:
        """Record a sequence's rows in the last decode: recurrent rollback is limited to them."""
        self._last_rows[seq_id] = num_rows
        self._lengths[seq_id] = length

    def forget_rows_of_others(self, batch: Batch) -> None:
        """Forbid rollback of sequences not in this decode: libllama may move their states without
        their snapshots, so others would be in their place.
        """
        here = set(batch.seq_ids[: batch.num_rows].tolist())
        self._last_rows = {one: rows for one, rows in self._last_rows.items() if one in here}

    def reusable(self, seq_id: int, length: int, *, by_copy: bool = False) -> int:
        if self._can_copy(seq_id, length) if by_copy else self._can_cut(seq_id, length):
            return length
        checkpoint = self.checkpoints.best(seq_id, length)
        return checkpoint.length if checkpoint else 0

    def truncate(self, seq_id: int, length: int) -> bool:
        if not self._can_cut(seq_id, length):
            return False
        if not self._remove(seq_id, length):
            return False
        if self.cache_kind is not CacheKind.CUT:
            if self._lengths.get(seq_id, 0) > length > 0:
                self._last_rows[seq_id] = 0  # the same decode cannot be rolled back twice
            self._set_length(seq_id, min(length, self._lengths.get(seq_id, 0)))
        return True

    def shift(self, seq_id: int, start: int, end: int) -> bool:
        # libllama shifts a cell for all sequences that share it, so copy it first
        if self._sharing.get(seq_id, 0) > end:
            state = self._try_get(seq_id, _WHOLE)
            self.clear(seq_id)
            if not self._set(seq_id, state, _WHOLE):
                self.clear(seq_id)
                return False
        if not (self._can_cut(seq_id, start) and self.gather(seq_id)):
            self.clear(seq_id)
            return False
        api.llama_memory_seq_rm(self._memory, seq_id, start, end)
        api.llama_memory_seq_add(self._memory, seq_id, end, -1, start - end)
        self.has_shifts = True
        if seq_id in self._sharing:
            self._sharing[seq_id] = min(start, self._sharing[seq_id])
        return True

    def gather(self, seq_id: int) -> bool:
        """Move a sequence to the shared cache; returns False if there is no room."""
        reader = self.reader
        if reader is None or seq_id not in reader.lengths:
            return True
        is_there = self._set(seq_id, self._try_get(seq_id, _WHOLE), _WHOLE)
        if is_there:
            reader.drop(seq_id)
        return is_there

    def hand_over(self, seq_id: int, num_tokens: int, reader: PromptReader) -> bool:
        """Move a sequence to the reader's cache; returns False if it must stay."""
        # shared cells would be copied
        is_dear = self._sharing.get(seq_id, 0) > 0 and num_tokens > FLASH_TILE
        state = b"" if is_dear else self._try_get(seq_id, _WHOLE)
        is_there = self._set(seq_id, state, _WHOLE, reader.handle)
        if is_there:
            self._sharing.pop(seq_id, None)
            self.checkpoints.drop_brief(seq_id)  # on the device, it belongs to this context
            api.llama_memory_seq_rm(self._memory, seq_id, -1, -1)
            reader.lengths[seq_id] = num_tokens
        return is_there

    def rewind(self, seq_id: int, length: int) -> int:
        if length and self.truncate(seq_id, length):
            return length
        checkpoint = self.checkpoints.best(seq_id, length)
        if checkpoint is not None and self._apply(seq_id, checkpoint):
            return checkpoint.length
        self.clear(seq_id)
        return 0

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        self.clear(target)
        if self.cache_kind is CacheKind.CUT:
            can_copy = self._can_copy(source, length) and self.gather(source)
            if can_copy:
                self._copy(source, target, length)
            return can_copy
        if not self._copy_with_state(source, target, length):
            self.clear(target)
            return False
        self._last_rows[target] = 0
        self._set_length(target, length)
        self.checkpoints.share(source, target, length)
        return True

    def clear(self, seq_id: int) -> None:
        self._lengths.pop(seq_id, None)
        self._last_rows.pop(seq_id, None)
        self._sharing.pop(seq_id, None)
        self.checkpoints.drop(seq_id)
        self.gaps.drop(seq_id)
        if self.reader is not None:
            self.reader.drop(seq_id)
        api.llama_memory_seq_rm(self._memory, seq_id, -1, -1)

    def wipe(self) -> None:
        # attention on a CPU multiplies free cells by 0, which leaves what is not a number
        api.llama_memory_clear(self._memory, True)
        if self.reader is not None:
            self.reader.close()

    def checkpoint(self, seq_id: int) -> None:
        length = self._lengths.get(seq_id, 0)
        if (
            self.cache_kind is CacheKind.CUT
            or not length
            or not self.checkpoints.per_sequence
            or self.checkpoints.has(seq_id, length)
        ):
            return
        if data := self._try_get(seq_id, _PARTIAL):
            self.checkpoints.add(seq_id, Checkpoint(length, data))

    def keep_for_draft(self, seq_id: int) -> bool:
        length = self._lengths.get(seq_id, 0)
        if self.cache_kind is not CacheKind.CHECKPOINT or not length:
            return self.cache_kind is not CacheKind.CHECKPOINT
        if self.checkpoints.is_before_draft(seq_id, length):
            return True
        if not self.gather(seq_id):
            return False
        self.checkpoints.drop_brief(seq_id)
        data = self._try_get(seq_id, _IN_PLACE)
        brief = Checkpoint(length, data, is_in_place=True)
        return bool(data) and self.checkpoints.add_brief(seq_id, brief)

    def save_sequence(self, seq_id: int) -> SavedState:
        state = self._get(seq_id, _WHOLE, self.gaps.pack(seq_id))
        return SavedState(state, tuple(self.checkpoints.of(seq_id)))

    def restore_sequence(self, seq_id: int, data: SavedState) -> int:
        self.clear(seq_id)
        state, self.lacks_cells = memoryview(data.state), False
        can_set = not self.has_copies or self._settle(seq_id)
        if not (can_set and self._set(seq_id, state[Gaps.size(state) :], _WHOLE)):
            self.clear(seq_id)
            return 0
        self._last_rows[seq_id] = 0  # no rollback after this
        self.gaps.unpack(seq_id, state)
        position = int(api.llama_memory_seq_pos_max(self._memory, seq_id)) + 1
        length = self.gaps.num_rows(seq_id, position)
        self._lengths[seq_id] = length
        for checkpoint in data.checkpoints:
            self.checkpoints.add(seq_id, checkpoint)
        return length

    def save_block(self, seq_id: int, start: int, end: int) -> bytearray:
        memory, reader = self._memory, self.reader
        if reader is not None and seq_id in reader.lengths:
            memory, reader.lengths[self._spare] = reader.memory, end
        try:  # a spare sequence sharing their cells
            api.llama_memory_seq_cp(memory, seq_id, self._spare, start, end)
            return self._get(self._spare, _WHOLE)
        finally:
            self.clear(self._spare)

    def restore_block(self, seq_id: int, data: Bytes) -> bool:
        is_set = self.gather(seq_id) and self._set(self._spare, data, _WHOLE)
        if is_set:
            api.llama_memory_seq_cp(self._memory, self._spare, seq_id, -1, -1)
        api.llama_memory_seq_rm(self._memory, self._spare, -1, -1)
        return is_set

    def _can_cut(self, seq_id: int, length: int) -> bool:
        dropped = self._lengths.get(seq_id, 0) - length
        is_cut = self.cache_kind is CacheKind.CUT  # whose lengths are not tracked
        if length == 0 or (dropped <= 0 and not is_cut):
            return True
        if self.cache_kind.is_recurrent:
            last_rows = self._last_rows.get(seq_id, 0)
            if dropped > min(self.max_padding, last_rows - 1):
                return False
        if not self.window:
            return True
        # libllama evicts the oldest tokens of a window in order: the rest has no gaps. With
        # --swa-full (kind CUT) a saved state has only the last window, too.
        oldest = int(api.llama_memory_seq_pos_min(self._memory, seq_id))
        return oldest <= max(0, self.gaps.position(seq_id, length) - self.window + 1)

    def _can_copy(self, seq_id: int, length: int) -> bool:
        """Whether another sequence can share exactly these tokens, without a checkpoint."""
        if self.cache_kind.is_recurrent:
            return length == self._lengths.get(seq_id, 0)
        return self._can_cut(seq_id, length)

    def _remove(self, seq_id: int, length: int) -> bool:
        """Remove everything after the first `length` tokens."""
        start = self.gaps.position(seq_id, length)
        memory, reader = self._memory, self.reader
        if reader is not None and seq_id in reader.lengths:
            memory, reader.lengths[seq_id] = reader.memory, min(length, reader.lengths[seq_id])
        is_done = bool(api.llama_memory_seq_rm(memory, seq_id, start, -1))
        if is_done and self.gaps:
            self.gaps.cut(seq_id, length)
        if is_done and seq_id in self._sharing:
            self._sharing[seq_id] = min(length, self._sharing[seq_id])
        return is_done

    def _set_length(self, seq_id: int, length: int) -> None:
        self._lengths[seq_id] = length
        self.checkpoints.cut(seq_id, length)

    def _copy(self, source: int, target: int, length: int) -> None:
        if self.has_own_caches:
            api.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self.gaps.share(source, target, length)
            self._remove(target, length)
            self.has_copies = True
        else:
            end = self.gaps.position(source, length)
            api.llama_memory_seq_cp(self._memory, source, target, 0, end)
            self.gaps.share(source, target, length)
            self._sharing |= {source: max(length, self._sharing.get(source, 0)), target: length}

    def _settle(self, seq_id: int) -> bool:
        """Make libllama perform deferred copies and shifts, because a cache is to be accessed
        before the next decode. Any decode does so before looking for cells: here one token of this
        sequence, which is removed at once.
        """
        length = int(api.llama_memory_seq_pos_max(self._memory, seq_id)) + 1
        batch = Batch(1)
        batch.add(seq_id, length, [0], 0)
        # 1: there was no cell
        is_done = api.llama_decode(self._context, c_batch(batch)) in (0, 1)
        api.llama_memory_seq_rm(self._memory, seq_id, length, -1)
        self.has_copies = self.has_shifts = not is_done
        return is_done

    def _copy_with_state(self, source: int, target: int, length: int) -> bool:
        """Share the cells that can be shared and copy the rest of the state to `target`; copy
        everything if each sequence has its own cache.

        Cells of windows are not shared: libllama reuses only cells with one owner, so shared ones
        would fill the cache once both sequences have moved on.
        """
        if not self.gather(source):
            return False
        data: Bytes | None = None
        flags = _PARTIAL
        if length == self._lengths.get(source, 0):
            data = self._try_get(source, flags)
        elif (found := self.checkpoints.best(source, length)) and found.length == length:
            data, flags = found.data, _flags_of(found)
        if data is None and not self._can_copy(source, length):
            return False
        if self.has_own_caches:
            if not self._set(target, self._try_get(source, _WHOLE), _WHOLE):
                return False
            self.gaps.share(source, target, length)
        else:
            self._copy(source, target, length)
        if data is None:
            data = self._try_get(target, flags)
        return self._set(target, data, flags) and self._remove(target, length)

    def _apply(self, seq_id: int, checkpoint: Checkpoint) -> bool:
        length, flags, holder = checkpoint.length, _flags_of(checkpoint), self._holder(seq_id)
        is_set = self._set(seq_id, checkpoint.data, flags, holder)
        if not is_set or not self._remove(seq_id, length):
            return False
        self._last_rows[seq_id] = 0
        self._set_length(seq_id, length)
        return True

    def _try_get(self, seq_id: int, flags: int) -> bytearray:
        """Like `_get`, but empty on failure: the caller loses a draft or decodes again."""
        try:
            return self._get(seq_id, flags)
        except (EngineError, MemoryError) as error:
            length = self._lengths.get(seq_id, 0)
            log.warning("no state after %d tokens: %s", length, error or "out of memory")
            return bytearray()

    def _get(self, seq_id: int, flags: int, head: bytes = b"") -> bytearray:
        """The state of a sequence, behind `head`.

        Raises:
            EngineError: libllama cannot write it.
        """
        if (self.has_copies or self.has_shifts) and not self._settle(seq_id):
            words = f"sequence {seq_id} holds what libllama could not copy or move"
            raise libllama_error(EngineError, words)
        holder = self._holder(seq_id)
        size = int(api.llama_state_seq_get_size_ext(holder, seq_id, flags))
        data = bytearray(len(head) + size)
        data[: len(head)] = head
        place = _bytes_of(memoryview(data)[len(head) :])
        written = api.llama_state_seq_get_data_ext(holder, place, size, seq_id, flags)
        if written != size:
            words = f"libllama wrote {written} of {size} bytes of sequence {seq_id}"
            raise libllama_error(EngineError, words)
        return data

    def _holder(self, seq_id: int) -> Any:
        """The context that holds a sequence."""
        reader = self.reader
        return self._context if reader is None or seq_id not in reader.lengths else reader.handle

    def _set(self, seq_id: int, data: Bytes, flags: int, context: Any = None) -> bool:
        if not len(data):
            return False
        place, size = _bytes_of(data), len(data)
        with muted():  # running out of cells is expected: the caller frees some or decodes again
            read = api.llama_state_seq_set_data_ext(
                context or self._context, place, size, seq_id, flags
            )
        reason = "" if read == size else take_errors() or "no reason given"
        self.lacks_cells = "available cells" in reason
        if reason and not self.lacks_cells:
            log.warning("a saved state cannot be used: %s", reason)
        return not reason


def _flags_of(checkpoint: Checkpoint) -> int:
    return _IN_PLACE if checkpoint.is_in_place else _PARTIAL


def _bytes_of(data: Bytes) -> Any:
    """A pointer into the caller's memory, valid as long as `data` lives."""
    address = np.frombuffer(data, np.uint8).ctypes.data
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
