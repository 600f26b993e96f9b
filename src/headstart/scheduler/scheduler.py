"""The loop. One step: admit, draft, build one batch, decode it once, commit what was verified."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headstart.config import SchedulerConfig
from headstart.scheduler import admission, batching, slot_actions
from headstart.scheduler.checkpoints import choose_pauses
from headstart.scheduler.commit import CONTEXT_FULL, Committer, Ending
from headstart.scheduler.constraint_queue import ConstraintQueue
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.host_cache import PromptStore
from headstart.scheduler.kept_slots import KeptSlots
from headstart.scheduler.observed_engine import observed
from headstart.scheduler.prompt_memory import PromptMemory
from headstart.scheduler.prompt_order import PromptOrder
from headstart.scheduler.proposal import NO_PROPOSAL
from headstart.scheduler.rollback import keep_states
from headstart.scheduler.slot import ALL_EXACT, NO_SLOT, ActiveRequest, Slot
from headstart.scheduler.turns import Turns
from headstart.scheduler.warm_up import WarmUp
from headstart.types import Batch, CacheKind, ContextFullError, Engine, Logits, StepStats, Vocab
from headstart.types.counters import Counters
from headstart.types.errors import EngineError, HeadstartError
from headstart.types.request import (
    Event,
    FinishEvent,
    Request,
    SlotAction,
    SlotEvent,
    TokenEvent,
    error_event,
)

if TYPE_CHECKING:
    from headstart.sampling.grammar.compiler import GrammarCompiler
    from headstart.worker.embedding import EmbeddingQueue

log = logging.getLogger(__name__)

# prompt rows of a step in which nobody generates, and how much longer than others it may take:
# bounds how long a cancel waits
_ALONE, _ALONE_SHARE = 512, 5


class Scheduler:
    """Runs requests on slots. Owns the engine; not thread-safe.

    `step()` returns events through `take_events()`; nothing here waits or knows who listens.
    """

    def __init__(
        self,
        engine: Engine,
        vocab: Vocab,
        drafting: Drafting,
        config: SchedulerConfig,
        clock: Callable[[], float] = time.perf_counter,
        compiler: GrammarCompiler | None = None,
    ) -> None:
        self.engine = engine = observed(engine, drafting.speculators.values())
        self.vocab = vocab
        self.drafting = drafting
        self.config = config
        self.clock = clock
        self.slots = [Slot(i) for i in range(config.parallel)]
        self.compiling = ConstraintQueue(compiler, clock)
        self.waiting: deque[ActiveRequest] = deque()
        self.running: list[ActiveRequest] = []  # in the order of their admission
        self.counters = Counters()
        # hands on what `take_events` returns: at the end of a step; where a device computes by
        # itself and another step follows, while it computes that one
        self.deliver: Callable[[], object] = lambda: None
        self.warm_up: WarmUp | None = None  # goes on while nobody asks for anything; the loop's
        self.turns = Turns(engine.attention_tile, config.prefill_chunk)
        self._order = PromptOrder(engine.attention_tile)
        self.kept_slots: KeptSlots | None = None  # where they are kept when the loop ends
        self.embeddings: EmbeddingQueue | None = None  # where the worker embeds; the loop's
        self._batch = Batch(engine.max_batch_tokens)
        self._num_padding = 0  # rows of this step that nobody needs
        self._max_prompt_rows = 0  # of this step
        self._in_batch: list[ActiveRequest] = []  # in the order of their rows
        self.num_failed_decodes = 0  # since the last one that worked
        self._events: list[Event] = []
        self._committer = Committer(engine, vocab, drafting, shifts_context=config.context_shift)
        store = PromptStore(config.cache_ram * 2**20)
        self.memory = PromptMemory(store, engine, drafting, self.counters, clock)
        self._sets_aside = config.cache_idle_slots and engine.attention_tile > 1

    @property
    def has_work(self) -> bool:
        return bool(self.compiling or self.waiting or self.running)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            CapacityError: too many are waiting.
            ContextLengthError, InvalidParameterError: it can never run.
        """
        admission.check(request, self.engine, len(self.slots))
        self.drafting.check(request.speculative)
        num_free = len(self.slots) - len(self.running)
        num_waiting = len(self.waiting) + len(self.compiling)
        admission.check_queue(num_waiting, num_free, self.config.max_queue)
        active = ActiveRequest(request, self.clock(), self._prompt_namespace(request))
        if request.constraint is None:
            self.waiting.append(active)
        else:
            self.compiling.add(active)

    def cancel(self, request_id: str) -> None:
        """Stop a request wherever it is; unknown or finished ones are ignored."""
        waiting = [a for a in self.waiting if a.request.request_id == request_id]
        for active in waiting:
            self.waiting.remove(active)
        for active in waiting + self.compiling.remove(request_id):
            summary = active.summarize(self.clock())
            if active.is_resumed:  # it has done something before it was preempted
                self.counters.add_request(summary)
            self._events.append(FinishEvent(request_id, "cancelled", summary))
        for active in [a for a in self.running if a.request.request_id == request_id]:
            self._finish(active, Ending("cancelled"), self.clock())

    def act_on_slot(self, action: SlotAction) -> SlotEvent:
        """Save, restore or erase an idle slot's prompt.

        Raises:
            CapacityError, EngineError, RequestError: why not; the slot is as it was, or empty.
        """
        action = replace(action, namespace=self._prompt_namespace(action))
        return slot_actions.perform(action, self.slots, self.engine, self.memory, self.clock)

    def _prompt_namespace(self, asked: Request | SlotAction) -> str:
        """Whose prompts it may use."""
        return str(asked.adapters or "") if self.config.share_prompts else asked.namespace

    def step(self) -> StepStats:
        """Advance every running request by one decode."""
        started = self.clock()
        self._take_compiled()
        self._admit()
        self.turns.begin_step(self.running)
        self._draft()
        drafted = self.clock()
        logits = self._decode()
        decoded = self.clock()
        stats = StepStats()
        if logits is not None:
            self.num_failed_decodes = 0
            stats.draft_seconds, stats.decode_seconds = drafted - started, decoded - drafted
            self._take_logits(logits, stats)
            stats.step_seconds = self.clock() - started
            self.counters.add(stats)
        if not (self.engine.is_asynchronous and self.running):
            self._meanwhile()
        return stats

    def _meanwhile(self) -> None:
        """Do what need not be done before the next batch is on its way."""
        self.drafting.deferred.run()
        self.deliver()

    def take_events(self) -> list[Event]:
        """Events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _take_compiled(self) -> None:
        """Queue the requests whose constraint is ready, refuse those that have none."""
        if not self.compiling:
            return
        if not self.waiting and not self.running:
            self.compiling.wait()
        for active, error in self.compiling.take_ready():
            if error is None:
                self.waiting.append(active)
            else:
                self._events.append(error_event(active.request.request_id, error))

    def _admit(self) -> None:
        num_running, index = len(self.running), 0
        while index < len(self.waiting):
            active = self.waiting[index]
            if admission.waits_for_slot(self.slots, active):
                index += 1
                continue
            placement = admission.find_slot(self.slots, active, self.engine)
            if placement is None:
                break
            del self.waiting[index]
            if active.admitted is None and not self._begin(active):
                continue
            placement = self.memory.improve(placement, active, self.slots)
            admission.admit(placement, active, self.engine)
            if active.admitted is None:
                active.admitted = self.clock()
            if self.engine.cache_kind is not CacheKind.CUT:
                is_control, step = self.vocab.is_control, self.config.checkpoint_min_step
                active.pauses = choose_pauses(active.tokens, active.num_decoded, is_control, step)
            active.leader = admission.find_leader(self.running, active, self.engine)
            self.running.append(active)
            if active.wants_progress:
                self._events.append(active.progress(self.clock()))
        admission.share_prefixes(self.slots, self.running, self.engine)
        if self._sets_aside and len(self.running) > num_running and not self.waiting:
            self.memory.set_aside(self.slots)

    def _begin(self, active: ActiveRequest) -> bool:
        """Make what only a running request needs; False if it cannot be made and the request ends.

        Not at submission: hundreds of waiting requests would hold memory for nothing.
        """
        try:
            active.begin(self.engine, self.vocab)
        except HeadstartError as error:
            self._events.append(error_event(active.request.request_id, error))
            return False
        return True

    def _draft(self) -> None:
        """Give every generating request its draft for this step."""
        self._num_padding = 0
        generating, reading = batching.generating_and_unread(self.turns.sharing(self.running))
        self._max_prompt_rows = self._prompt_rows(len(generating)) if reading else 0
        if not generating:
            return
        limits = batching.draft_limits(generating, self.engine, len(self.slots))
        num_prompt_rows = min(reading, self._max_prompt_rows)
        batch_limits = (self.engine.max_batch_tokens, self.engine.max_outputs)
        can_pad = self.engine.padding_sequence is not None
        self._num_padding = self.drafting.propose(
            generating, limits, num_prompt_rows, batch_limits, can_pad=can_pad
        )
        if self.engine.cache_kind is CacheKind.CHECKPOINT:
            keep_states(generating, self.engine, self.drafting, self.clock)
        if not self.engine.is_asynchronous:  # what drafting leaves over is no time of the decode
            self.drafting.deferred.run()

    def _prompt_rows(self, num_generating: int) -> int:
        """Most prompt rows of this step: few while others wait for their next token."""
        least, milliseconds = self.config.prefill_chunk, self.config.prefill_ms
        if not any(active.is_generating for active in self.running):
            least, milliseconds = _ALONE, _ALONE_SHARE * milliseconds
        bounds = (least, self.engine.max_batch_tokens)
        return self.drafting.prompt_rows(num_generating, bounds, milliseconds)

    def _decode(self) -> Logits | None:
        """Decode one batch, making room as often as needed; None if there was nothing to do."""
        while True:
            rows = self._max_prompt_rows
            sharing = self.turns.sharing(self.running)
            self._in_batch = batching.build(self._batch, sharing, self.engine, self._order, rows)
            if not self._batch.num_rows:
                return None
            try:
                return self._decode_padded()
            except ContextFullError:
                self._make_room()
            except EngineError as error:
                self._fail(error)

    def _decode_padded(self) -> Logits:
        """Decode the batch with the rows that make it faster, which leave nothing behind."""
        spare, num_padding = self.engine.padding_sequence, self._num_padding
        meanwhile = self._meanwhile if self.engine.is_asynchronous else None
        if self.engine.sends_graphs:  # rows with outputs, of which there are only so many
            room = self.engine.max_outputs - self._batch.num_outputs
            self._num_padding = num_padding = min(num_padding, room)
        if spare is None or not num_padding:
            return self.engine.decode(self._batch, meanwhile)
        if self.engine.sends_graphs:
            return batching.decode_like_last(self.engine, self._batch, num_padding, meanwhile)
        batching.pad(self._batch, num_padding, spare)
        try:
            return self.engine.decode(self._batch, meanwhile)
        finally:
            self.engine.clear(spare)

    def _make_room(self) -> None:
        """Free cells: drop padding, drafts, idle prefixes, then preempt the youngest request."""
        self.drafting.deferred.run()  # it counts drafts that may be dropped now
        if self._num_padding:
            self._num_padding = 0
        elif any(active.proposal.drafts for active in self.running):
            self.drafting.drop(self.running)
        elif not self.memory.make_room(self.slots):
            if len(self.running) > 1:
                self._preempt(max(self.running, key=lambda active: active.submitted))
            else:
                self._finish(self.running[0], CONTEXT_FULL, self.clock())

    def _preempt(self, active: ActiveRequest) -> None:
        """Take the request off its slot; it loses its cells and no text, and continues later."""
        self._clear(active)
        active.num_decoded, active.num_exact = 0, ALL_EXACT
        active.proposal, active.leader, active.is_resumed = NO_PROPOSAL, None, True
        self.waiting.appendleft(active)
        # before it is back: nobody may wait for one that waits for him
        admission.share_prefixes(self.slots, self.running, self.engine)
        self.counters.preemptions += 1
        log.info(
            "request %s waits: the context is full, it continues when cells are free",
            active.request.request_id,
        )

    def _fail(self, error: EngineError) -> None:
        """The decode failed: the requests of this batch fail, the others and the worker live on."""
        log.error("decode failed: %s", error)
        self.num_failed_decodes += 1
        self._num_padding = 0
        for active in self._in_batch:
            self._fail_request(active, error)

    def _fail_request(self, active: ActiveRequest, error: HeadstartError) -> None:
        self.drafting.deferred.run()
        summary = active.summarize(self.clock())
        self._events.append(error_event(active.request.request_id, error, summary))
        self.counters.requests_failed += 1
        self._clear(active)

    def _clear(self, active: ActiveRequest) -> None:
        """Take the request off its slot and forget what is in the cache."""
        slot = self._release(active)
        self.engine.clear(slot.slot_id)
        slot.hold([])

    def _release(self, active: ActiveRequest) -> Slot:
        """Take the request off its slot, which keeps its tokens for the next prompt."""
        self.drafting.end(active)
        self.running.remove(active)
        slot = self.slots[active.slot_id]
        slot.hold(active.tokens[: active.num_decoded], active.num_exact, active.num_prompt)
        slot.active, slot.last_used, active.slot_id = None, self.clock(), NO_SLOT
        return slot

    def _finish(self, active: ActiveRequest, ending: Ending, now: float) -> None:
        """End a request that did not fail."""
        request_id = active.request.request_id
        if rest := active.stop.flush():  # held back because it might have begun a stop string
            self._events.append(TokenEvent(request_id, (), rest, ()))
        self.drafting.deferred.run()
        self.drafting.guess_logs.conclude(active)
        summary = active.summarize(now)
        self.counters.add_request(summary)
        word = active.stop.found.decode("utf-8", "replace") if ending.reason == "word" else ""
        is_truncated = ending.is_truncated or active.num_dropped > 0
        end = FinishEvent(request_id, ending.reason, summary, word, is_truncated)
        self._events.append(end)
        self._release(active)

    def _take_logits(self, logits: Logits, stats: StepStats) -> None:
        """The batch was decoded: learn what that took, commit, and count it."""
        batch, committer = self._batch, self._committer
        committer.target_ms = 1000.0 * stats.decode_seconds
        committer.draft_ms = 1000.0 * stats.draft_seconds
        if self._max_prompt_rows:
            self._order.count(self._in_batch)
        context = batching.mean_context(batch, self._in_batch)
        self.drafting.observe_step(batch.num_rows, context, committer.target_ms)
        if self.drafting.observes:
            self.drafting.observe(batching.output_rows(batch, logits))
        stats.num_slots, stats.num_emitted = len(self._in_batch), self._commit(logits)
        stats.num_verify_rows, stats.num_padding_rows = batch.num_outputs, self._num_padding
        stats.num_prompt_rows = batch.num_rows - batch.num_outputs - self._num_padding

    def _commit(self, logits: Logits) -> int:
        """Verify and emit in the order of the batch's outputs; returns tokens emitted."""
        now = self.clock()
        done = self._committer.commit(self._in_batch, logits, now)
        self._events += done.events
        for active, error in done.failed:
            self._fail_request(active, error)
        for active, ending in done.ended:
            self._finish(active, ending, now)
        return done.num_emitted
