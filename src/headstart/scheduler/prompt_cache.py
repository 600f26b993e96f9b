"""The slots of the target's cache: who uses them, and what they keep between requests.

A request gets the cells with the longest known prefix of its prompt, from its own conversation or
shared with another. Evicted prompts may be kept in main memory (`offloading`).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import Match
from math import inf, nextafter

import numpy as np

from headstart.scheduler.context_shift import find_chunks, move_chunks
from headstart.scheduler.copy_prices import LEAST_TOKENS
from headstart.scheduler.offloading import Offloading
from headstart.scheduler.sequence import Cells, Sequence, num_shared
from headstart.scheduler.step import StepPlan
from headstart.structures.prefix import common_prefix_length
from headstart.types import CacheKind, Engine, Vocab
from headstart.types.constraint import NO_LIMIT
from headstart.types.media import chunk_begin


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request will run, and how much of its text is cached there."""

    cells: Cells
    num_shared: int = 0  # leading tokens of the request that are in the cache
    source: Cells | None = None  # sequence to share cells with; None: its own cells are used
    chunks: tuple[Match, ...] = ()  # further cached chunks, which have to be moved

    @property
    def num_known(self) -> int:
        """Tokens of the request that need not be decoded."""
        return self.num_shared + sum(chunk.size for chunk in self.chunks)


class PromptCache:
    """Chooses cells for requests, and restores prompts into them."""

    def __init__(
        self, cells: list[Cells], engine: Engine, offloading: Offloading, vocab: Vocab
    ) -> None:
        self.cells, self.offloading, self._engine = cells, offloading, engine
        ids = range(0 if engine.cache_kind is CacheKind.CUT else vocab.size)
        self._controls = [*filter(vocab.is_control, ids)]

    def waits(self, sequence: Sequence) -> bool:
        """Whether the slot that the request names is in use; requests behind it go first then."""
        wished = sequence.request.slot_id
        return wished is not None and self.cells[wished].user is not None

    def find(self, sequence: Sequence) -> Placement | None:
        """Find cells for a request, and note what is to be restored from main memory. Returns None
        if what the cells hold is still being copied there; until it is, nothing is looked up again.
        """
        cells = sequence.chosen
        if cells is not None and cells.user is None and not self._keep(cells):
            return None
        sequence.chosen = None
        return self._plan_restore(sequence, self._find(sequence), cells)

    def _find(self, sequence: Sequence) -> Placement:
        """Choose the free cells with most of the request's text; at least one is free.

        Cells that hold this conversation are continued; if none are empty, also those of another
        one that mostly begins alike. Otherwise the least recently used cells are emptied and share
        the best prefix that any cells hold, even those in use: sharing costs nothing, and the other
        conversation stays cached. Only text of the request's own namespace is considered, so that
        no tenant learns from the cache what another wrote.
        """
        free = [cells for cells in self.cells if cells.user is None]
        wished = [cells for cells in free if cells.seq_id == sequence.request.slot_id]
        oldest = min(free, key=_age)
        if not sequence.request.cache_prompt:
            return Placement((wished or [oldest])[0])
        common = {cells.seq_id: num_shared(cells, sequence) for cells in self.cells}
        own = {c.seq_id: self._continuation(c, common[c.seq_id], sequence) for c in free}
        best = max(free, key=lambda cells: (own[cells.seq_id].num_known, -cells.last_used))
        chosen = (wished or [best])[0]
        if not wished and self._loses_much(own[chosen.seq_id], common[chosen.seq_id], oldest):
            chosen = oldest
        shared = self._find_shared(chosen, common)
        return max(own[chosen.seq_id], shared, key=lambda placement: placement.num_known)

    def _find_shared(self, cells: Cells, common: dict[int, int]) -> Placement:
        """The other cells of which these can share most; `common`: by sequence id, how many tokens
        of the request each holds.
        """
        best = Placement(cells)
        for other in self.cells:
            if other is not cells and common[other.seq_id] > best.num_shared:
                num = self._engine.reusable(other.seq_id, common[other.seq_id], by_copy=True)
                best = Placement(cells, num, other) if num > best.num_shared else best
        return best

    def place(self, sequence: Sequence, placement: Placement) -> None:
        """Give the request its cells, truncated to what they have in common with it."""
        cells, shared, engine = placement.cells, placement.num_shared, self._engine
        num_exact = (placement.source or cells).num_exact
        if placement.chunks:
            num_exact = min(num_exact, shared)
            is_moved = move_chunks(cells.seq_id, placement.chunks, engine)
            shared = engine.rewind(cells.seq_id, placement.num_known if is_moved else 0)
        elif placement.source is not None:
            if not engine.copy_prefix(placement.source.seq_id, cells.seq_id, shared):
                shared = 0
        elif shared < cells.length:
            shared = engine.rewind(cells.seq_id, shared)
        cells.tokens, cells.length, cells.user = sequence.tokens, shared, sequence
        cells.num_exact = num_exact if num_exact < shared else NO_LIMIT
        if self._engine.has_prompt_widths:
            cells.num_exact = sequence.num_as_prompt
        cells.namespace = sequence.prompt_namespace
        cells.is_private = sequence.request.is_private
        sequence.cells = cells
        if not sequence.is_resumed or sequence.admitted is None:
            sequence.num_cached = shared

    def _plan_restore(
        self, sequence: Sequence, placement: Placement, kept: Cells | None
    ) -> Placement | None:
        """Choose what to restore from main memory, and copy the slot's old contents there, unless
        it is `kept`. Returns None if that needs another step.
        """
        cells, offloading = placement.cells, self.offloading
        _, num_led = self.find_leader([one.user for one in self.cells if one.user], sequence)
        num_known = max(placement.num_known, num_led)
        stored, num_common = offloading.find(sequence, num_known)
        if stored is not None:
            known = stored.known(placement.num_shared)
            source = placement.source if known else None
            placement = Placement(cells, known[-1].end if known else 0, source)
            offloading.store.use(stored)  # first: the copy may evict the oldest one
        num_kept = placement.num_known if placement.source is None else 0
        is_other = is_another(num_kept, cells.num_prompt)
        # with blocks only those at the end are copied
        is_lost = 2 * num_kept < cells.length or (is_other and self._engine.has_blocks)
        if is_lost:
            if cells is not kept and not self._keep(cells):
                sequence.chosen = cells
                return None
            offloading.store.lose(cells.namespace, cells.packed)
        if stored is not None:
            sequence.stored, sequence.num_awaited = stored, num_common
        return placement

    def restore(self, sequence: Sequence) -> bool:
        """Go on to restore a running request's prompt. Returns whether that is over: all of it is
        restored, or there is no room for the rest.
        """
        stored, cells, wanted = sequence.stored, sequence.cells, sequence.num_awaited
        assert stored is not None
        assert cells is not None
        while not self.offloading.restore(stored, cells, wanted):
            if not self._engine.lacks_cells:
                self.offloading.store.erase(stored.namespace, stored.tokens)  # it is of no use
                break
            # if other cells hold most of it, do not evict a prompt to restore the rest
            others = (one for one in self.cells if one is not cells)
            num_here = max((num_shared(one, sequence) for one in others), default=0)
            if 2 * num_here > len(stored.tokens) or not self.offloading.evict():
                break
        else:
            if cells.length < wanted:
                return False
            is_continued = not is_another(wanted, stored.num_prompt)
            self.offloading.store.use(stored, is_continued=is_continued)
        sequence.stored = None
        length = self._engine.reusable(cells.seq_id, min(cells.length, wanted))
        # even if nothing is cut: speculators restored what they knew of the whole prompt
        cells.length = self._engine.rewind(cells.seq_id, length)
        self._share_most(sequence, cells)
        if sequence.admitted is None:
            sequence.num_cached = cells.length
        return True

    def _share_most(self, sequence: Sequence, cells: Cells) -> None:
        """Share other cells if they hold more of a request's text than its own."""
        common = {one.seq_id: num_shared(one, sequence) for one in self.cells}
        shared = self._find_shared(cells, common)
        if shared.num_shared > cells.length:
            self.place(sequence, shared)

    def _keep(self, cells: Cells) -> bool:
        """Copy the slot's contents to RAM. Returns False if copying is unfinished."""
        offloading = self.offloading
        return offloading.keep(cells) or offloading.take_time() or offloading.is_too_long(cells)

    def release(self, sequence: Sequence) -> Cells:
        """Detach the request from its slot; the slot keeps the tokens for reuse."""
        cells = sequence.cells
        assert cells is not None
        for _, chunk in sequence.media:
            chunk.drop(sequence)
        if self._engine.has_prompt_widths and cells.length > sequence.num_as_prompt:
            self.cut(sequence, sequence.num_as_prompt)
        cells.hold(cells.tokens[: cells.length], cells.num_exact, sequence.num_prompt)
        self.note_use(cells)
        cells.user = sequence.cells = None
        sequence.num_again = 0
        return cells

    def note_use(self, cells: Cells) -> None:
        """Make a slot the one used last."""
        newest = max(one.last_used for one in self.cells)
        cells.last_used = max(time.time(), nextafter(newest, inf))  # the clock may be set back

    def cut(self, sequence: Sequence, length: int) -> None:
        """Truncate to `length` decoded tokens. If the cache cannot truncate exactly, it truncates
        further and the rest is decoded again.
        """
        cells = sequence.cells
        assert cells is not None
        if length < cells.length or self._engine.cache_kind is CacheKind.ROLLBACK:
            length = self._engine.rewind(cells.seq_id, length)
        cells.length = length

    def keep_states(self, plan: StepPlan, clock: Callable[[], float]) -> None:
        """Make every draft of this step reversible, or drop it.

        For caches that cannot be rolled back, copies the state before each draft. After a rejection
        the accepted tokens are decoded again, before the next draft, if any: the copy is still
        there.
        """
        for answer in plan.answers:
            if not answer.num_verified:
                continue
            started = clock()
            is_kept = self._engine.keep_for_draft(answer.sequence.seq_id)
            if is_kept and not answer.sequence.num_again:
                plan.copies_ms.append(1000.0 * (clock() - started))
            elif not is_kept:
                answer.drop("no memory for the state before a draft")

    def choose_pauses(self, sequence: Sequence, min_step: int) -> list[int]:
        """Lengths at which reading it makes a checkpoint; none where the cache can be cut."""
        if self._engine.cache_kind is CacheKind.CUT:
            return []
        return choose_pauses(sequence.packed, sequence.num_decoded, self._controls, min_step)

    def find_leader(
        self, running: Collection[Sequence], sequence: Sequence
    ) -> tuple[Sequence | None, int]:
        """The running request whose prefill covers most of this one's, and how many tokens; None
        and 0 if few agree.

        `running` is in the order of admission; requests admitted later do not count, which avoids
        circular waits.
        """
        if not sequence.request.cache_prompt or self._engine.cache_kind is not CacheKind.CUT:
            return None, 0  # waiting could be in vain if prefixes cannot be cut anywhere
        best, most = None, 0
        least = sequence.num_decoded + LEAST_TOKENS
        tokens = sequence.tokens
        for other in running:
            if other is sequence:
                break
            if other.is_generating or other.prompt_namespace != sequence.prompt_namespace:
                continue
            shared = min(len(tokens) - 1, common_prefix_length(other.tokens, tokens))
            shared = chunk_begin(tokens, shared)
            if shared >= least and shared > most:
                best, most = other, shared
        return best, most

    def share_prefixes(self, running: list[Sequence]) -> None:
        """Give waiting requests their leader's cells, once it has decoded the whole common prefix.

        If the leader left early, the first of them continues the prefill and leads the others.
        """
        for sequence in running:
            leader, cells = sequence.leader, sequence.cells
            if leader is None or cells is None:
                continue
            is_reading = leader.cells is not None and not leader.is_generating
            if is_reading and leader.num_decoded < sequence.num_awaited:
                continue
            self._share_most(sequence, cells)
            led = (None, 0) if is_reading else self.find_leader(running, sequence)
            sequence.leader, sequence.num_awaited = led

    def _continuation(self, cells: Cells, num_common: int, sequence: Sequence) -> Placement:
        """How much of the request a free slot could reuse by continuing its own contents."""
        least = sequence.request.cache_reuse
        is_theirs = cells.namespace == sequence.prompt_namespace
        if not least or not self._engine.can_shift or not is_theirs:
            return Placement(cells, self._engine.reusable(cells.seq_id, num_common))
        held = cells.tokens[: cells.length]
        chunks = find_chunks(held, sequence.tokens, num_common, least)
        return Placement(cells, num_common, chunks=chunks)

    def _loses_much(self, own: Placement, num_common: int, oldest: Cells) -> bool:
        """Whether continuing these cells would lose most of their contents; or some of another
        conversation's, while an empty slot could share the common prefix.
        """
        cells, known = own.cells, own.num_known
        if 2 * known < cells.length or oldest.length:
            return 2 * known < cells.length
        can_share = self._engine.reusable(cells.seq_id, num_common, by_copy=True) >= known
        return can_share and is_another(num_common, cells.num_prompt)


def is_another(num_common: int, num_prompt: int) -> bool:
    """Whether a request with `num_common` shared tokens belongs to another conversation than the
    one with a prompt of `num_prompt` tokens, and shares only the beginning with it.

    If it continues that conversation it may still lack the answer: thoughts are not sent back.
    """
    return num_common + LEAST_TOKENS <= num_prompt


def _age(cells: Cells) -> tuple[bool, float]:
    """Empty cells first, then the least recently used."""
    return (bool(cells.length), cells.last_used)


def choose_pauses(
    tokens: array[int], num_cached: int, controls: list[int], min_step: int
) -> list[int]:
    """Lengths of the prompt, after `num_cached`, that are worth a checkpoint, in order.

    For engines that cannot truncate at any position. The next request of a conversation shares a
    prefix with this one, and differs from where a message was edited or where the thoughts of the
    last turn are left out. Both lie where messages begin and end: at control tokens.

    The end of the first message, for conversations that begin alike, unless the last marker follows
    soon; the last marker, before which the next turn has the same text; and others at least
    `min_step` tokens apart, at markers if there are any. The engine waits: nothing is done for each
    token.
    """
    least = 16  # shorter prefixes are decoded faster than restored
    before_end = 4  # if no marker is found: appended text may merge with the last tokens
    markers = np.flatnonzero(np.isin(np.frombuffer(tokens, np.intc)[least:], controls)) + least
    end = len(tokens) - before_end
    always = {*markers[:1].tolist(), end}
    # markers of the answer's header are among the last tokens
    if len(markers) and (newest := int(markers[-1])) >= len(tokens) - 64:
        # Long text may follow the last marker: the name of the turn, an empty thought.
        end = end if end - newest >= before_end else newest
        begins = [first for first in markers[:1].tolist() if first + least <= newest]
        always = {*begins, newest, end}
    pauses, last = list[int](), 0
    while last < end:
        at = int(markers.searchsorted(last + min_step))
        far = [int(markers[at])] if at < len(markers) else []
        position = min(one for one in (*far, *always) if one > last)
        pauses += [*range(last + min_step, position - min_step + 1, min_step), position]
        last = position
    pauses = list(dict.fromkeys(chunk_begin(tokens, pause) for pause in pauses))
    return [pause for pause in pauses if pause > max(num_cached, least - 1)]
