"""The step that advances all requests: plan, decode, commit; readers of the record do the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace
from itertools import count
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from headstart.config import SchedulerConfig
from headstart.scheduler import admission, batching
from headstart.scheduler.admission import Tenants
from headstart.scheduler.cell_order import CellOrder
from headstart.scheduler.commit import Committer
from headstart.scheduler.constraint_queue import ConstraintQueue
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.observed_engine import observed
from headstart.scheduler.offloading import Offloading
from headstart.scheduler.policy import make_policy
from headstart.scheduler.prompt_cache import PromptCache
from headstart.scheduler.prompt_order import PromptOrder
from headstart.scheduler.prompt_store import PromptStore
from headstart.scheduler.readers import StepOutcomes
from headstart.scheduler.sequence import Cells, Sequence
from headstart.scheduler.slot_actions import SlotActions
from headstart.scheduler.step import End, ReadRecord, SequencePlan, StepPlan, StepRecord
from headstart.scheduler.turns import Turns
from headstart.scheduler.warm_up import WarmUp
from headstart.types import Batch, CacheKind, ContextFullError, Engine, Logits, Vocab
from headstart.types.errors import EngineError, HeadstartError
from headstart.types.media import MediaStore
from headstart.types.report import Counters
from headstart.types.request import Request, SlotAction
from headstart.types.widths import WidthClasses

if TYPE_CHECKING:
    from headstart.worker.embedding import EmbeddingQueue

log = logging.getLogger(__name__)

MOST_SCORED = 1 << 20  # logits that a step reads to score prompts while others wait: 3 ms
WAIT_SECONDS = 0.005  # for threads, in a step without other work
_NO_LOGITS: Logits = np.empty((0, 0), np.float32)


class Scheduler:
    """Runs requests on the cells of one engine; not thread-safe."""

    def __init__(
        self,
        engine: Engine,
        vocab: Vocab,
        drafting: Drafting,
        config: SchedulerConfig,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine = engine = observed(engine, drafting.speculators.values())
        self.vocab = vocab
        self.drafting = drafting
        self.config = config
        self.clock = clock
        self.cells = [Cells(seq_id) for seq_id in range(config.parallel)]
        self.compiling = ConstraintQueue(vocab, config.tenant_compile_seconds, clock)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []  # in the order of their admission
        self.counters = Counters()
        self.outcomes = StepOutcomes(drafting.speculators, self.counters)
        self.take_events = self.outcomes.take_events
        self.deliver: Callable[[], object] = lambda: None  # delivers the events of `take_events`
        self.readers: list[ReadRecord] = [drafting.read]
        self.record: StepRecord | None = None  # last record, if not read yet
        self.num_failed_decodes = 0  # consecutive failures
        self.warm_up: WarmUp | None = None  # runs while idle; set by the worker's loop
        self.widths: WidthClasses | None = None  # result of comparing widths, if that was done
        self.near_tie = 0.0  # margin, in logits, below which a choice counts as a near tie
        self.turns = Turns(engine, config.prefill_chunk)
        self.embeddings: EmbeddingQueue | None = None  # if the worker embeds
        store = PromptStore(config.cache_ram * 2**20)
        offloading = Offloading(self.cells, store, engine, drafting, self.counters, clock)
        self.cache = PromptCache(self.cells, engine, offloading, vocab)
        self.media: MediaStore | None = None  # if the model reads images
        self.slot_actions = SlotActions(self.cache, engine, clock)
        self._committer = Committer(engine, vocab, self.cache, drafting, self.compiling, config)
        self._tenants = Tenants()
        self._order = PromptOrder(engine.attention_tile, self._tenants)
        self._cell_order = CellOrder(engine.num_cells)
        self._batch = Batch(engine.max_batch_tokens)
        self._ended: list[End] = []  # since the last record
        self._step_seconds = 0.0  # duration of the last step
        self._numbers = count()
        self._num_new = 0  # see `StepPlan`
        self._sets_aside = config.cache_idle_slots and engine.attention_tile > 1

    @property
    def has_work(self) -> bool:
        """Whether a step would have anything to do or to report."""
        is_asked = self.compiling.waiting or self.slot_actions.waiting or self.waiting
        return bool(is_asked or self.running or self._ended or self.record)

    def know_widths(self, classes: WidthClasses) -> None:
        """Record which batch widths give equal logits."""
        self.widths = classes
        log.info("%s", classes.promise(self.engine.cache_kind))
        # either of the two logits may have changed
        self.near_tie = 0.0 if classes.is_exact else 2.0 * classes.change

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            CapacityError: too many are waiting.
            ContextLengthError, RequestError: it could never run.
        """
        admission.check(request, self.engine, len(self.cells))
        config, loaded = self.drafting.config, self.drafting.speculators
        policy = make_policy(request.speculative, config, loaded, self.drafting.unusable)
        namespace = self._prompt_namespace(request)
        sequence = Sequence(next(self._numbers), request, policy, self.clock(), namespace)
        sequence.media = admission.find_media(request.media, self.media)
        num_free = len(self.cells) - len(self.running)
        if len(self.waiting) + len(self.compiling) >= self.config.max_queue + num_free:
            queue = [*self.compiling, *self.waiting]
            seconds = self.counters.mean_seconds / len(self.cells)
            last, error = self._tenants.make_place(sequence, queue, self.config.max_queue, seconds)
            self.cancel(last.request.request_id, error)
        num_ahead = len(self.waiting) + len(self.compiling)
        self._num_new += num_ahead < num_free and bool(self.running)
        (self._queue if request.constraint is None else self.compiling.add)(sequence)
        self._tenants.add(sequence.tenant)

    def cancel(self, request_id: str, error: HeadstartError | None = None) -> None:
        """Stop a request wherever it is; unknown or finished ones are ignored."""
        named = [one for one in self.waiting + self.running if one.request.request_id == request_id]
        for sequence in named + self.compiling.remove(request_id):
            self.detach(End(sequence, "cancelled", error=error))

    def _queue(self, sequence: Sequence) -> None:
        """Queue the sequence for a slot; if too few are free, the tenant with most may lose one."""
        self.waiting.append(sequence)
        may_ask = (one for one in self.waiting if one.held_since is None)
        asking = [one for one in may_ask if not self.cache.waits(one)]
        if len(asking) > len(self.cells) - len(self.running):
            first = self._cell_order.first  # it would take its slot back
            if last := self._tenants.find_surplus(self.running, sequence.tenant, asking, first):
                self._interrupt(last, "another tenant has fewer of them")

    def act_on_slot(self, action: SlotAction) -> None:
        """Save, restore or erase an idle slot's prompt; an event reports the result."""
        self.slot_actions.add(replace(action, namespace=self._prompt_namespace(action)))

    def _prompt_namespace(self, asked: Request | SlotAction) -> str:
        return str(asked.adapters or "") if self.config.share_prompts else asked.namespace

    def step(self) -> StepRecord:
        """Advance every running request by one decode; returns the record."""
        plan = self.plan()
        while plan.num_rows:
            try:
                self.engine.launch(plan.batch)
                break
            except ContextFullError:
                self.make_room(plan)
            except EngineError as error:
                self.fail(plan, error)
        logits = _NO_LOGITS
        plan.is_asynchronous = self.engine.is_asynchronous
        if plan.is_asynchronous or self.record is not None:  # or the last step was
            self.read()  # the last record, while the device computes this step
        plan.launched = self.clock()
        if plan.num_rows:
            try:
                logits = self.engine.wait()
            except EngineError as error:
                self.fail(plan, error)
        record = self.record = self.commit(plan, logits)
        if not (plan.is_asynchronous and self.running):
            self.read()
        return record

    def read(self) -> None:
        """Deliver the last record's events, which the web process sends while readers go on."""
        record, self.record = self.record, None
        if record is not None:
            self.outcomes.read(record)
        self.deliver()
        if record is not None:
            for read in self.readers:
                read(record)

    def finish(self) -> None:
        """End what runs, so that its prompts can be kept, and pass what ended to the readers."""
        self.read()
        for sequence in [*self.running]:
            self.detach(End(sequence, "cancelled"))
        self.record = self.commit(StepPlan(self._batch, self.clock()), _NO_LOGITS)
        self.read()

    def plan(self) -> StepPlan:
        """Plan the next step: who takes part, with which drafts; fills its batch."""
        plan = StepPlan(self._batch, self.clock(), rows=self.engine.rows)
        self.cache.offloading.begin_step(self._step_seconds if self.running else inf)
        if not self.running:
            self.wait_for_threads()
        if self.slot_actions.waiting or self.compiling.waiting or self.compiling.futures:
            self._take_ready()
        num_running = len(self.running)
        if self.waiting:
            self._admit(plan.started)
        for sequence in self.running:
            if sequence.stored is not None and self.cache.restore(sequence):
                self._start(sequence)
        self.cache.share_prefixes(self.running)
        plan.num_running = len(self.running)
        plan.num_new, self._num_new = self._num_new, 0
        if not self.waiting and plan.num_running < len(self.cells):
            is_new = self._sets_aside and plan.num_running > num_running
            self.cache.offloading.go_on(is_new=is_new)
        answers, prompts = self.turns.choose([one for one in self.running if one.stored is None])
        plan.answers = [SequencePlan(sequence) for sequence in answers]
        if prompts:
            plan.prompts = [SequencePlan(sequence, is_prompt=True) for sequence in prompts]
            most = self.engine.max_batch_tokens
            plan.max_prompt_rows = self._order.limit(prompts, self.running, self.config, most)
            if not all(sequence.is_scored for sequence in self.running):
                plan.max_scored = MOST_SCORED // self.engine.vocab_size
        if answers:
            self.drafting.draft(plan, self.engine)
            if self.engine.cache_kind is CacheKind.CHECKPOINT:
                self.cache.keep_states(plan, self.clock)
        plan.drafted = self.clock()
        batching.build(plan, self.engine, self._order)
        if not plan.num_rows:
            self.turns.wait(WAIT_SECONDS)
        return plan

    def make_room(self, plan: StepPlan) -> None:
        """Free cells: drop padding, else drafts, else an idle prompt, else preempt a request."""
        if not plan.shrink("context full") and not self.cache.offloading.evict():
            self._preempt()
        batching.build(plan, self.engine, self._order)

    def _preempt(self) -> None:
        last = self._cell_order.last(self.running)
        if len(self.running) > 1:
            self._interrupt(last, "the context is full", lacks_cells=True)
        else:
            self.detach(End(last, "length", is_truncated=True))

    def fail(self, plan: StepPlan, error: EngineError) -> None:
        """Fail the requests of a batch whose decode failed; the others and the worker continue."""
        log.error("decode failed: %s", error)
        for one in (*plan.answers, *plan.prompts):
            if one.num_rows:
                self.detach(End(one.sequence, error=error))
                one.num_rows = 0
        self.num_failed_decodes += plan.batch.media is None  # media fail alone
        if batching.mixes_states(plan.batch, self.engine):
            for sequence in reversed(self.running[:]):
                self._interrupt(sequence, "a decode failed beside it")
            for cells in self.cells:
                self.cache.offloading.empty(cells)
        plan.num_rows = 0

    def commit(self, plan: StepPlan, logits: Logits) -> StepRecord:
        """Write the results of the batch into a record, and end finished requests."""
        record = StepRecord(plan, self.clock())
        if plan.num_padding:
            assert self.engine.padding_sequence is not None
            self.engine.clear(self.engine.padding_sequence)
        if plan.num_rows:
            self.num_failed_decodes = 0
            if plan.max_prompt_rows or self._tenants.are_several:
                self._order.count(plan, record.target_ms)
        for leaving in self._committer.commit(record, logits):
            if isinstance(leaving, End):
                self.detach(leaving)
            else:
                self._interrupt(*leaving)
        record.ended, self._ended = self._ended, []
        record.finished = self.clock()
        self._step_seconds = record.finished - plan.started
        return record

    def _interrupt(self, sequence: Sequence, reason: str, *, lacks_cells: bool = False) -> None:
        """Detach a running request, which continues later."""
        self._leave(sequence, is_emptied=lacks_cells)
        sequence.leader, sequence.stored, sequence.is_resumed = None, None, True
        if lacks_cells and sequence.held_since is None:
            sequence.held_since = self.clock()
        is_ready = sequence.request.constraint is None or sequence.compiled is not None
        (self.waiting.append if is_ready else self.compiling.add)(sequence)
        self.cache.share_prefixes(self.running)  # those that waited for it
        self.counters.preemptions += 1
        log.info("request %s is interrupted: %s", sequence.request.request_id, reason)

    def _leave(self, sequence: Sequence, *, is_emptied: bool) -> None:
        self.drafting.end(sequence)
        self.running.remove(sequence)
        cells = self.cache.release(sequence)
        if is_emptied:
            self.cache.offloading.empty(cells)

    def detach(self, end: End) -> None:
        """Detach a request, wherever it is, for good."""
        sequence = end.sequence
        end.stats = sequence.summarize(self.clock())
        if sequence.cells is not None:
            self._leave(sequence, is_emptied=end.error is not None)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence.lookup is not None:
            sequence.lookup.cancel()
        has_begun = hasattr(sequence, "sampler") or sequence.lookup or sequence.loading
        if has_begun and sequence.admitted is None:  # a slot was reserved for it
            self._tenants.charge_turn(sequence.tenant)
        if end.error is None:
            end.rest = sequence.stop.flush()
        self._tenants.remove(sequence.tenant)
        self.compiling.release(sequence)
        self._ended.append(end)

    def wait_for_threads(self) -> None:
        """Idle: wait briefly for background threads."""
        awaited = (work for one in self.waiting for work in (one.loading, one.lookup))
        begun = [work for work in awaited if work and not work.done()]
        if begun or not self.waiting:
            others = filter(None, [self.slot_actions.file, *self.compiling.futures.values()])
            wait([*begun, *others], WAIT_SECONDS, FIRST_COMPLETED)

    def _take_ready(self) -> None:
        """Continue slot actions whose file is done; queue or fail requests whose constraint is."""
        for event in self.slot_actions.go_on():
            self.outcomes.add(event)
        for sequence, error in self.compiling.take_ready():
            if error is None:
                self._queue(sequence)
            else:
                self.detach(End(sequence, error=error))

    def _admit(self, now: float) -> None:
        """Give free cells with the longest known prefix to waiting requests, tenants in turn."""
        self._cell_order.pass_turn(self.waiting, self.running, now)
        first = next((one for one in self.waiting if one.number == self._cell_order.first), None)
        if len(self.running) == len(self.cells):
            if first is None:
                return
            self._preempt()
        num_loading = 0
        waiting = self._tenants.order(self.waiting, self.running)
        for sequence in self._cell_order.may_start(waiting, self.running, now):
            if sequence is not first and self.cache.waits(sequence):
                continue
            if len(self.cells) - len(self.running) <= num_loading:  # reserved for these
                break
            is_ready = self.cache.offloading.load(sequence) and self._prepare(sequence)
            placement = self.cache.find(sequence) if is_ready else None
            if placement is None:
                num_loading += 1
                continue
            self.waiting.remove(sequence)
            self.cache.place(sequence, placement)
            self.running.append(sequence)
            if sequence.stored is None:
                self._start(sequence)

    def _prepare(self, sequence: Sequence) -> bool:
        """Create the sampler. Returns False if that failed or needs another step."""
        if not hasattr(sequence, "sampler"):
            params, lookups = sequence.request.sampling, (one.lookup for one in self.waiting)
            if params.has_dry and any(one and not one.done() for one in lookups):
                return False  # its own, or another's: one at a time, so that tenants take turns
            if sequence.lookup is None:
                sequence.lookup = self.engine.begin_filters(params)
            if sequence.lookup is not None and not sequence.lookup.done():
                return False
            try:
                sequence.begin(self.engine, self.vocab)
            except HeadstartError as error:
                self.detach(End(sequence, error=error))
                return False
            sequence.sampler.tie_margin = self.near_tie
        while not (is_done := sequence.sampler.read_on()) and self.cache.offloading.take_time():
            pass
        return is_done

    def _start(self, sequence: Sequence) -> None:
        """Start prefill of the tokens missing from the cache."""
        self._tenants.charge_turn(sequence.tenant)
        if sequence.admitted is None:
            sequence.admitted = self.clock()
        sequence.pauses = self.cache.choose_pauses(sequence, self.config.checkpoint_min_step)
        sequence.leader, sequence.num_awaited = self.cache.find_leader(self.running, sequence)
        if sequence.request.wants_progress and sequence.first_token is None:
            self.outcomes.add(sequence.progress(self.clock(), sequence.num_decoded))
