"""The loop. One step: admit, draft, build one batch, decode it once, commit what was verified."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from headstart.config import SchedulerConfig
from headstart.errors import (
    CapacityError,
    ContextLengthError,
    EngineError,
    HeadstartError,
    InvalidParameterError,
)
from headstart.sampling.sampler import Sampler
from headstart.scheduler import admission, batching
from headstart.scheduler.commit import Committer
from headstart.scheduler.counters import Counters
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.proposal import NO_PROPOSAL
from headstart.scheduler.request import Event, FinishEvent, ProgressEvent, Request, error_event
from headstart.scheduler.slot import ActiveRequest, Slot
from headstart.scheduler.warm_up import time_decodes
from headstart.types import Batch, ContextFullError, Decoded, Engine, Logits, StepStats, Vocab

log = logging.getLogger(__name__)


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
    ) -> None:
        self.engine = engine
        self.vocab = vocab
        self.drafting = drafting
        self.config = config
        self.clock = clock
        for speculator in drafting.speculators.values():
            speculator.vocab_size = engine.vocab_size
        self.slots = [Slot(i) for i in range(config.parallel)]
        self.waiting: deque[ActiveRequest] = deque()
        self.counters = Counters()
        self._batch = Batch(engine.max_batch_tokens)
        self._in_batch: list[Slot] = []  # in the order of their rows
        self._events: list[Event] = []
        self._committer = Committer(engine, vocab, drafting, self.counters, self._events)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) or any(s.active is not None for s in self.slots)

    def warm_up(self, seconds: float) -> None:
        """Measure what steps of some sizes cost; nothing stays in the cache."""
        if samples := time_decodes(self.engine, self.clock, seconds):
            self.drafting.controller.learn_costs(samples)
        self.drafting.time_models(self.clock)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            CapacityError: too many are waiting.
            ContextLengthError, InvalidParameterError: it can never run.
        """
        self._check(request)
        if len(self.waiting) >= self.config.max_queue + sum(s.active is None for s in self.slots):
            raise CapacityError(
                f"{len(self.waiting)} requests are waiting and --max-queue is "
                f"{self.config.max_queue}; try again later"
            )
        sampler = Sampler(request.sampling, self.engine, self.vocab.eog_ids)
        self.waiting.append(ActiveRequest(request, sampler, self.clock()))

    def cancel(self, request_id: str) -> None:
        """Stop a request wherever it is; unknown or finished ones are ignored."""
        for active in list(self.waiting):
            if active.request.request_id == request_id:
                self.waiting.remove(active)
                self._events.append(
                    FinishEvent(request_id, "cancelled", active.stats(-1, self.clock()))
                )
        for slot in self.slots:
            if slot.active is not None and slot.active.request.request_id == request_id:
                self._committer.finish(slot, "cancelled", self.clock())

    def step(self) -> StepStats:
        """Advance every slot by one decode."""
        started = self.clock()
        self._admit()
        self._draft()
        drafted = self.clock()
        logits = self._decode()
        decoded = self.clock()
        if logits is None:
            return StepStats()
        self._observe_cost(1000.0 * (decoded - drafted))
        self.drafting.observe(self._observed(logits))
        emitted = self._commit(logits)
        return self._account(started, drafted, decoded, emitted)

    def take_events(self) -> list[Event]:
        """Events since the last call, in order."""
        events = self._events[:]
        self._events.clear()
        return events

    def _check(self, request: Request) -> None:
        prompt = request.prompt
        if not len(prompt):
            raise InvalidParameterError("the prompt has no tokens; send some text")
        if len(prompt) >= self.engine.context_size:
            raise ContextLengthError(len(prompt), self.engine.context_size)
        low, high = min(prompt), max(prompt)
        if low < 0 or high >= self.engine.vocab_size:
            wrong = low if low < 0 else high
            raise InvalidParameterError(
                f"token id {wrong} is not in the vocabulary (0 to {self.engine.vocab_size - 1})"
            )
        if (bias := request.sampling.logit_bias) and not all(
            0 <= i < self.engine.vocab_size for i in bias
        ):
            raise InvalidParameterError(
                "logit_bias names a token that is not in the vocabulary (0 to "
                f"{self.engine.vocab_size - 1})"
            )
        if request.slot_id is not None and not 0 <= request.slot_id < len(self.slots):
            raise InvalidParameterError(
                f"id_slot is {request.slot_id} but the slots are 0 to {len(self.slots) - 1}"
            )
        self.drafting.check(request.speculative)

    def _admit(self) -> None:
        while self.waiting:
            slot = admission.choose_slot(self.slots, self.waiting[0], self.engine)
            if slot is None:
                return
            active = self.waiting.popleft()
            if active.admitted is None:
                active.admitted = self.clock()
                active.sampler.read(active.tokens)
            slot.last_used = self.clock()

    def _draft(self) -> None:
        """Give every generating run its draft for this step."""
        generating = [s for s in self.slots if s.active is not None and s.active.is_generating]
        if not generating:
            return
        draft_limits = batching.draft_rooms(generating, self.engine, len(self.slots))
        reading = sum(
            s.active.num_pending
            for s in self.slots
            if s.active is not None and not s.active.is_generating
        )
        limits = (self.engine.max_batch_tokens, self.engine.max_outputs)
        self.drafting.propose(
            generating, draft_limits, min(reading, self.config.prefill_chunk), limits
        )

    def _decode(self) -> Logits | None:
        """Decode one batch, making room as often as needed; None if there was nothing to do."""
        while True:
            self._in_batch = batching.build(
                self._batch, self.slots, self.engine, self.config.prefill_chunk
            )
            if not self._batch.num_rows:
                return None
            try:
                return self.engine.decode(self._batch)
            except ContextFullError:
                self._make_room()
            except EngineError as error:
                self._fail(error)

    def _make_room(self) -> None:
        """Free cells: forget drafts, then idle prefixes, then put the youngest request back in the
        queue.
        """
        running = [s for s in self.slots if s.active is not None]
        if any(s.active is not None and s.active.proposal.head.tokens for s in running):
            self.drafting.drop(running)
            return
        idle = [s for s in self.slots if s.active is None and s.kept]
        if idle:
            oldest = min(idle, key=lambda s: s.last_used)
            self.engine.clear(oldest.slot_id)
            oldest.kept = []
        elif len(running) > 1:
            self._preempt(max(running, key=lambda s: s.active.submitted if s.active else 0.0))
        else:
            self._committer.finish(running[0], "length", self.clock(), truncated=True)

    def _preempt(self, slot: Slot) -> None:
        """Take the request off its slot; it loses its cells and no text, and continues later."""
        active = slot.active
        assert active is not None
        self.drafting.end(slot)
        self.engine.clear(slot.slot_id)
        active.num_decoded, active.proposal = 0, NO_PROPOSAL
        slot.active, slot.kept = None, []
        self.waiting.appendleft(active)
        self.counters.preemptions += 1
        log.info(
            "request %s waits: the context is full, it continues when cells are free",
            active.request.request_id,
        )

    def _fail(self, error: EngineError) -> None:
        """The decode failed: the requests of this batch fail, the others and the worker live on."""
        log.error("decode failed: %s", error)
        for slot in self._in_batch:
            self._fail_slot(slot, error)

    def _fail_slot(self, slot: Slot, error: HeadstartError) -> None:
        if slot.active is None:
            return
        stats = slot.active.stats(slot.slot_id, self.clock())
        self._events.append(error_event(slot.active.request.request_id, error, stats))
        self.drafting.end(slot)
        self.counters.requests_failed += 1
        self.engine.clear(slot.slot_id)
        slot.active, slot.kept = None, []

    def _observe_cost(self, milliseconds: float) -> None:
        """Tell control what the decode cost: rows, and what each of them attended to on average."""
        num_rows = self._batch.num_rows
        attended = sum(
            s.active.num_rows * (s.num_cached + s.active.num_rows // 2)
            for s in self._in_batch
            if s.active is not None
        )
        self.drafting.controller.observe_step(num_rows, attended // num_rows, milliseconds)

    def _observed(self, logits: Logits) -> Decoded:
        """The rows for speculators. They must not write to the logits: these are sampled
        afterwards.
        """
        if not self.drafting.observes:
            return _NOTHING_OBSERVED
        batch = self._batch
        rows = batch.wants_logits[: batch.num_rows].astype(bool)
        view = logits.view()
        view.flags.writeable = False
        return Decoded(
            batch.seq_ids[: batch.num_rows][rows],
            batch.positions[: batch.num_rows][rows],
            batch.tokens[: batch.num_rows][rows],
            view,
        )

    def _commit(self, logits: Logits) -> int:
        """Verify and emit, slot by slot, in the order of the batch's outputs; returns tokens
        emitted.
        """
        offset = emitted = 0
        now = self.clock()
        for slot in self._in_batch:
            active = slot.active
            assert active is not None
            if active.num_rows < active.num_pending:  # a chunk of the prompt, no outputs
                active.num_decoded += active.num_rows
                if active.request.wants_progress:
                    self._events.append(_progress(active, now))
                continue
            width = 1 + len(active.proposal.tokens)
            try:
                emitted += self._committer.commit(slot, logits[offset : offset + width], now)
            except (EngineError, InvalidParameterError) as error:  # of this request alone
                self._fail_slot(slot, error)
            offset += width
        return emitted

    def _account(self, started: float, drafted: float, decoded: float, emitted: int) -> StepStats:
        """Sum up."""
        batch = self._batch
        stats = StepStats(
            num_prompt_rows=batch.num_rows - batch.num_outputs,
            num_verify_rows=batch.num_outputs,
            num_emitted=emitted,
            num_slots=len(self._in_batch),
            draft_seconds=drafted - started,
            decode_seconds=decoded - drafted,
            step_seconds=self.clock() - started,
        )
        self.counters.add(stats)
        return stats


def _progress(active: ActiveRequest, now: float) -> ProgressEvent:
    since = now - (active.admitted or now)
    return ProgressEvent(
        active.request.request_id, active.num_prompt, active.num_cached, active.num_decoded, since
    )


_NOTHING_OBSERVED = Decoded(
    np.empty(0, np.int32),
    np.empty(0, np.int32),
    np.empty(0, np.int32),
    np.empty((0, 0), np.float32),
)
