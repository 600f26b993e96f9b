"""Moves prompts between the model's cache, main memory and the disk.

Restoring costs a fraction of decoding the prompt again: it copies each token's keys and values
once, while decoding multiplies each token with all weights. Both are measured, and the cheaper one
is chosen.

Only the engine loop can copy, because that needs libllama's context. Beside requests copies take a
small part of a step, block by block, and continue in the next. A cache without blocks is copied at
once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from math import inf

from headstart.scheduler.copy_prices import LEAST_TOKENS, STEP_SECONDS, CopyPrices
from headstart.scheduler.disk_cache import DiskCache
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.prompt_store import PromptStore, StoredBlock, StoredPrompt
from headstart.scheduler.sequence import Cells, Sequence, num_shared
from headstart.structures.checkpoints import Data
from headstart.types import CacheKind, Engine, SavedState
from headstart.types.errors import EngineError
from headstart.types.report import Counters

log = logging.getLogger(__name__)

BLOCK = 64  # tokens: 1 MiB of a small model, 8 of one with 8 B
# longest wait for the disk: of a request, and of a server that stops
PATIENCE_SECONDS = 5.0
_NOTHING: Future[StoredPrompt | None] = Future()
_NOTHING.set_result(None)


class Offloading:
    """Moves the prompts of a scheduler. Keeps none if the store's size is 0."""

    def __init__(
        self,
        cells: list[Cells],
        store: PromptStore,
        engine: Engine,
        drafting: Drafting,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.store = store
        self._cells = cells
        self._engine = engine
        self._drafting = drafting
        self._counters = counters
        self._prices = CopyPrices(counters)
        self._clock = clock
        self._last_copy = 1, 0  # its tokens and bytes
        self._seconds = inf  # for the copies of this step
        self._until: float | None = None  # when they end, once they began
        self._looked = 0.0  # at the clock, last
        self._is_behind = False  # `set_aside` was cut short
        self._unfinished: object = None  # the text that is copied in part
        self._kept_ahead = -1.0  # `last_used` of the slot that was pre-copied last
        self.disk: DiskCache | None = None
        self._overdue = _NOTHING  # a read that takes too long; no other one is waited for

    def use_disk(self, disk: DiskCache | None) -> None:
        """Write to the disk what main memory evicts, and its contents at the end."""
        if disk is not None:
            self.disk, self.store.dropped = disk, disk.put

    def begin_step(self, last_seconds: float) -> None:
        """Reset the time limit of copies, given how long the last step took; inf: no limit.

        A block once begun is finished. The time counts from the first copy: finding what to copy is
        O(context), and may take all.
        """
        self._seconds, self._until = max(STEP_SECONDS, 0.04 * last_seconds), None

    def take_time(self) -> bool:
        """Begin the time for copies of this step, or return whether some of it is left."""
        self._looked = self._clock()
        if self._until is None:
            self._until = self._looked + self._seconds
        return self._looked < self._until

    def evict(self) -> bool:
        """Empty the idle slot used least recently; it is kept if possible. False: none is idle."""
        idle = [cells for cells in self._cells if cells.user is None and cells.length]
        if idle:
            cells = min(idle, key=lambda one: one.last_used)
            self.keep(cells)
            self.empty(cells)
        return bool(idle)

    def empty(self, cells: Cells) -> None:
        """Empty a slot; `tokens` records what it held."""
        self._engine.clear(cells.seq_id)
        self.store.lose(cells.namespace, cells.packed)
        cells.length = cells.num_prompt = 0

    def set_aside(self) -> None:
        """Move the unshared cells of idle slots to main memory.

        Attention on a CPU scans the cells of all sequences. For answers of a few tokens, two copies
        would take longer than that.
        """
        self._is_behind = False
        running = (one.user for one in self._cells if one.user is not None)
        if sum(one.num_left + one.num_pending for one in running) < LEAST_TOKENS:
            return
        idle = [one for one in self._cells if one.user is None and one.length >= LEAST_TOKENS]
        own = {cells.seq_id: self._num_own(cells) for cells in idle}
        # 2,000 of them made decodes 1.3 to 1.5 times as slow; a few are not worth two copies
        if sum(own.values()) < 256:
            return
        for cells in idle:
            # copies include the shared prefix
            if own[cells.seq_id] < max(LEAST_TOKENS, cells.length // 2):
                continue
            if self._has_room(cells) and self.keep(cells):
                self.empty(cells)
            elif not self.take_time():
                self._is_behind = True
                break

    def go_on(self, *, is_new: bool) -> None:
        """Move idle prompts to RAM if a request arrived or the last attempt was cut short.
        Otherwise pre-copy the next prompt to be evicted.
        """
        if is_new or self._is_behind:
            self.set_aside()
            return
        idle = [cells for cells in self._cells if cells.user is None and cells.length]
        if not (self._engine.has_blocks and idle and any(cells.user for cells in self._cells)):
            return
        lengths = [cells.length for cells in self._cells]
        if all(lengths) or 2 * sum(lengths) > self._engine.num_cells:
            oldest = min(idle, key=lambda one: one.last_used)
            # looking it up again is O(context), and what cannot be copied is not retried
            is_done = oldest.last_used == self._kept_ahead or not self._has_room(oldest)
            if not is_done and (self.keep(oldest) or self.take_time()):
                self._kept_ahead = oldest.last_used

    def is_too_long(self, cells: Cells) -> bool:
        """Whether the slot's prompt does not fit into main memory."""
        return not self.store.fits(cells.namespace, self._expected_bytes(cells))

    def _expected_bytes(self, cells: Cells) -> float:
        """Size of a slot's copy if it had one, else the least, given that of the last copy;
        recurrent states do not grow.
        """
        num_tokens, num_bytes = self._last_copy
        share = cells.length / num_tokens
        least = num_bytes * (share if self._engine.has_blocks else min(1.0, share))
        return cells.num_bytes or least

    def _has_room(self, cells: Cells) -> bool:
        """Whether main memory can take a prompt, and has so much room or so many others that no
        fewer conversations are known than the cache alone would hold.
        """
        store, num_bytes = self.store, self._expected_bytes(cells)
        is_enough = store.num_bytes + num_bytes <= store.max_bytes
        is_enough = is_enough or any(islice(store.only_here(), len(self._cells), None))
        return is_enough and not self.is_too_long(cells)

    def write_next(self) -> bool:
        """Queue the most recently used prompt that is not on the disk yet, or copy part of it.

        Returns False if there is none or the queue is full.
        """
        if self.disk is None:
            return False
        for cells in self._unwritten(self.disk):
            num_bytes = self._expected_bytes(cells)
            if not self.disk.takes(cells.namespace, num_bytes, cells.last_used):
                continue  # copying it is all that would come of it
            self.begin_step(0.0)  # for each: not all copies are taken
            if copy := self._copy(cells, is_idle=True):
                is_whole = len(copy.tokens) == cells.length
                if self.disk.put(copy) if is_whole else self.store.put(copy):
                    return True
        return any(map(self.disk.put, [*self.store.only_here()]))

    def _unwritten(self, disk: DiskCache) -> Iterator[Cells]:
        """Idle slots to be written, most recently used first."""
        for cells in sorted(self._cells, key=lambda one: -one.last_used):
            is_free = cells.user is None and not cells.is_private
            is_writable = is_free and self._is_worth_it(cells)
            if is_writable and not disk.knows(cells.namespace, cells.packed):
                yield cells

    def finish(self) -> None:
        """Write unsaved prompts to the disk, for a few seconds at most."""
        if (disk := self.disk) is None:
            return
        until = self._clock() + PATIENCE_SECONDS
        disk.is_over.set()
        while (left := until - self._clock()) > 0.0:
            if not self.write_next():
                if not disk.waiting:
                    break
                time.sleep(0.05)  # its queue may be full
        held = [(one.namespace, one.packed) for one in self._unwritten(disk)]
        for one in self.store.only_here():
            parts = [text[: len(one.tokens)] for name, text in held if name == one.namespace]
            if not one.is_private and one.tokens not in parts:
                held.append((one.namespace, one.tokens))
        disk.finish(max(0.0, left), held)

    def load(self, sequence: Sequence) -> bool:
        """Load a request's prompt from the disk, looked up once; returns False if it needs another
        step.
        """
        is_long = sequence.num_pending > LEAST_TOKENS
        if not (self.disk and is_long and sequence.request.cache_prompt):
            return True
        listed = self.disk.begin()
        if sequence.loading is None:
            if not self._overdue.done():
                return True
            sequence.loading, sequence.load_by = listed, self._clock() + PATIENCE_SECONDS
        if sequence.loading is listed and listed.done():
            sequence.loading = self._load(sequence, self.disk)
        if not sequence.loading.done() and self._clock() < sequence.load_by:
            return False
        loading, sequence.loading = sequence.loading, _NOTHING
        if not loading.done():
            self._overdue = loading
            log.warning("the disk takes long; until it answers, prompts are processed again")
            return True
        stored = loading.result()
        # another server sharing this folder may use blocks when this one does not
        if stored is not None and (stored.is_whole or self._engine.has_blocks):
            self.store.put(stored)
        return True

    def _load(self, sequence: Sequence, disk: DiskCache) -> Future[StoredPrompt | None]:
        """Load the longest matching prompt from the disk, if that saves time."""
        tokens, namespace = sequence.packed, sequence.prompt_namespace
        files, length = disk.index.find(namespace, tokens)
        num_bytes = sum(file.num_bytes for file in files)
        if not (files and self._overdue.done()) or num_bytes > self.store.max_bytes:
            return _NOTHING
        length = self._usable(files[-1].keys, files[-1].length, min(length, len(tokens) - 1))
        num_known = max(num_shared(cells, sequence) for cells in self._cells)
        num_known = max(num_known, self.store.find(namespace, tokens)[1])
        if not self._prices.restoring_pays(length - num_known, num_bytes, disk.reading):
            return _NOTHING
        reading = num_bytes * disk.reading.seconds
        sequence.load_by = self._clock() + PATIENCE_SECONDS + 4.0 * reading
        return disk.load(namespace, files, sequence.tenant)

    def keep(self, cells: Cells) -> bool:
        """Copy an idle slot, as far as this step has time, unless it is stored elsewhere. Returns
        whether all of it can be restored.
        """
        if not self.store.max_bytes or not self._is_worth_it(cells):
            return False
        is_new = cells.packed is not self._unfinished  # looking it up is O(context)
        if is_new and (self.store.holds(cells.namespace, cells.packed) or not self._num_own(cells)):
            return True
        if (stored := self._copy(cells)) is None:
            return False
        is_kept = self.store.put(stored) and len(stored.tokens) == cells.length
        self._counters.prompts_saved += is_kept
        self._unfinished = None if is_kept else cells.packed
        return is_kept

    def _is_worth_it(self, cells: Cells) -> bool:
        """Whether the slot is worth keeping. Shifted cells do not count: only requests with
        `cache_reuse` may use them.
        """
        return cells.length >= LEAST_TOKENS and cells.num_exact >= cells.length

    def _copy(self, cells: Cells, *, is_idle: bool = False) -> StoredPrompt | None:
        """Copy an idle slot, or as much of it as this step has time for and pays, if the server is
        not idle. Failing is harmless: the prompt is decoded again.
        """
        try:
            blocks, others = self._copy_blocks(cells, is_idle), dict[str, Data]()
            if blocks and blocks[-1].end == cells.length:
                others = self._drafting.save_sequences(cells.seq_id, cells.namespace)
        except (EngineError, MemoryError) as error:
            log.warning("a prompt is not kept: %s", error or "out of memory")
            return None
        if not blocks:
            return None
        stored = StoredPrompt(
            cells.namespace,
            cells.packed[: blocks[-1].end],
            tuple(blocks),
            cells.num_prompt,
            cells.last_used,
            others,
            cells.is_private,
        )
        self._last_copy = len(stored.tokens), stored.num_bytes
        if len(stored.tokens) == cells.length:
            cells.num_bytes = stored.num_bytes
        return stored

    def _copy_blocks(self, cells: Cells, is_idle: bool) -> list[StoredBlock]:
        """The blocks of `_copy`. Those already in main memory, of a text with the same prefix, are
        not copied again.
        """
        seq_id, length = cells.seq_id, cells.length
        # the cells of an image share positions, and libllama addresses cells by position
        if not self._engine.has_blocks or cells.has_media:
            return [StoredBlock(0, length, self._engine.save_sequence(seq_id))]
        alike, num_common = self.store.find(cells.namespace, cells.packed)
        whole = num_common - num_common % BLOCK
        blocks = list(alike.known(whole)) if alike is not None and not alike.is_whole else []
        has_time = self.take_time()
        while (start := blocks[-1].end if blocks else 0) < length and has_time:
            end = min(length, start + BLOCK - start % BLOCK)
            is_answer = end > cells.num_prompt
            if not (is_idle or self._prices.pays(BLOCK, is_answer)):
                break
            began = self._looked
            blocks.append(StoredBlock(start, end, self._engine.save_block(seq_id, start, end)))
            has_time = self.take_time()
            self._prices.blocks[is_answer].observe(self._looked - began)
        return blocks

    def find(self, sequence: Sequence, num_cached: int) -> tuple[StoredPrompt | None, int]:
        """A stored prompt that saves time beside `num_cached` cached tokens, and how many tokens it
        and the request have in common.
        """
        if not self.store or not sequence.request.cache_prompt:  # packing it is O(context)
            return None, 0
        tokens = sequence.packed
        stored, num_common = self.store.find(sequence.prompt_namespace, tokens)
        if stored is None:
            return None, 0
        num_common = min(num_common, len(tokens) - 1)
        lengths = stored.blocks[0].checkpoints
        length = self._usable(lengths, len(stored.tokens), num_common)
        share = 1.0 if stored.is_whole else max(0, length - num_cached) / len(stored.tokens)
        pays = self._prices.restoring_pays(length - num_cached, share * stored.num_bytes)
        return (stored, num_common) if pays else (None, 0)

    def _usable(self, lengths: Iterable[int], whole: int, length: int) -> int:
        """How many of a prompt's first `length` tokens remain after restoring and truncating it;
        `lengths` are those of its checkpoints.
        """
        # a saved state has only the last window, which the last but one token attends to as well
        is_held = whole <= (self._engine.window or whole) or length >= whole - 1
        is_cut = is_held and self._engine.cache_kind in (CacheKind.CUT, CacheKind.WINDOW)
        if is_cut or length == whole:
            return length
        return max((one for one in lengths if one <= length), default=0)

    def restore(self, stored: StoredPrompt, cells: Cells, wanted: int) -> bool:
        """Add blocks of a stored prompt to cells that hold those before them, as far as `wanted`
        tokens need and this step has time. Returns False if there is no room.
        """
        started, before, engine, seq_id = self._clock(), cells.length, self._engine, cells.seq_id
        is_there = True
        for block in stored.blocks:
            if not cells.length <= block.start < wanted:
                continue
            if not self.take_time():
                break
            if isinstance(block.data, SavedState):
                is_there = engine.restore_sequence(seq_id, block.data) == block.end
            else:
                is_there = engine.restore_block(seq_id, block.data)
            if not is_there:
                break
            cells.length = block.end
        if not cells.length:
            engine.clear(seq_id)
        if cells.length >= wanted:
            self._drafting.restore_sequences(seq_id, dict(stored.others), stored.namespace)
            self._counters.prompts_restored += 1
        if num_restored := cells.length - before:
            self._counters.prompt_tokens_restored += num_restored
            num_bytes = stored.num_bytes * num_restored / len(stored.tokens)
            self._prices.restoring.observe((self._clock() - started) / num_bytes)
        return is_there

    def _num_own(self, cells: Cells) -> int:
        """Tokens of an idle sequence after the longest prefix that it has in common, and may share,
        with another.
        """
        others = (one for one in self._cells if one is not cells)
        shared = (one.num_common(cells.namespace, cells.tokens) for one in others)
        return cells.length - max(shared, default=0)
