"""A worker that plays scripts: emits given events, waits, raises, and remembers what happened to
it.
"""

from __future__ import annotations

import asyncio
import queue
from collections import Counter
from collections.abc import Callable, Sequence

from headstart.types import ModelInfo
from headstart.types.errors import HeadstartError
from headstart.types.report import Counters, SlotReport, SpeculatorReport, WorkerInfo, WorkerReport
from headstart.types.request import (
    EmbeddingEvent,
    Event,
    FinishEvent,
    ProgressEvent,
    Request,
    RequestStats,
    TokenEvent,
    TokenLogprob,
)
from headstart.types.speculation_stats import SpeculationStats
from headstart.types.worker import Deliver

HOLD = "hold"
LOGPROBS = [-0.5, -float("inf")]
Script = Callable[[Request], Sequence[Event | HeadstartError | str]]

TARGET = ModelInfo(
    path="/models/tiny.gguf",
    name="tiny",
    architecture="llama",
    num_params=1000,
    size_bytes=4000,
    vocab_size=258,
    context_size=512,
    train_context_size=512,
    num_layers=2,
    embedding_size=16,
    memory="cut",
    file_type="F32",
)
INFO = WorkerInfo(
    target=TARGET,
    draft=None,
    num_slots=4,
    context_size=512,
    max_batch_tokens=256,
    max_requests=1 << 20,
    speculation={"mode": "auto", "types": ["ngram-simple"], "n_max": 32, "unusable": ""},
    system="libllama b1",
)
DRAFTED = SpeculationStats(
    num_calls=4,
    num_drafts_offered=2,
    verified=Counter({(0, 3, 2): 1}),
    reasons=Counter({"no match": 2, "below break-even": 1}),
)
VERIFIED = Counter({(0, 2, 2): 3, (0, 4, 1): 1})
REPORT = WorkerReport(
    counters=Counters(requests=3, prompt_tokens=30, prompt_seconds=2.0),
    drafts=SpeculationStats(verified=VERIFIED, reasons=Counter({'no "match"': 2})),
    slots=(
        SlotReport(
            slot_id=0,
            is_processing=True,
            request_id="r",
            max_tokens=9,
            num_emitted=2,
            by_speculator={"ngram-simple": DRAFTED},
        ),
        SlotReport(slot_id=1),
    ),
    speculators=(
        SpeculatorReport(
            name="ngram-simple",
            stats=SpeculationStats(5, 4, VERIFIED, Counter({"outbid": 6})),
            seconds={"propose": 0.5},
        ),
    ),
    refusals={"queue": 0},
)
STATS = RequestStats(
    slot_id=2,
    num_prompt=5,
    num_cached=2,
    num_emitted=4,
    num_steps=2,
    drafts=SpeculationStats(verified=Counter({(0, 3, 2): 1}), reasons=Counter({"no match": 1})),
    by_speculator={"ngram-simple": DRAFTED},
    prompt_seconds=0.5,
    generation_seconds=0.25,
)


def say(
    request: Request, *steps: bytes, reason: str = "eos", stopping_word: str = ""
) -> list[Event]:
    """Steps of byte tokens; in a step all but the last token were drafted."""
    events: list[Event] = []
    if request.wants_progress:
        events.append(
            ProgressEvent(request.request_id, len(request.prompt), 2, len(request.prompt), 0.5)
        )
    for step in steps:
        wanted = request.num_logprobs
        logprobs = tuple(
            TokenLogprob(token, -0.5, TokenLogprob.pack([token, 65][:wanted], LOGPROBS[:wanted]))
            for token in step
            if wanted is not None
        )
        sources = ("ngram-simple",) * (len(step) - 1) + ("",)
        events.append(TokenEvent(request.request_id, tuple(step), step, sources, logprobs))
    events.append(FinishEvent(request.request_id, reason, STATS, stopping_word))
    return events


def hello(request: Request) -> list[Event]:
    """Says "Höi!", its ö split over two steps; nothing at all for max_tokens 0."""
    if request.max_tokens == 0:
        return say(request, reason="length")
    return say(request, b"H\xc3", b"\xb6i!")


class FakeWorker:
    """Implements `Worker`. Ended and cancelled requests are put into queues that tests wait on."""

    def __init__(self, script: Script = hello) -> None:
        self.status = "loading"
        self.failure = ""
        self.info: WorkerInfo | None = None
        self.info_when_ready = INFO
        self.script = script
        self.current_report = REPORT
        self.start_error: HeadstartError | None = None
        self.requests: list[Request] = []
        self.started: queue.Queue[str] = queue.Queue()
        self.cancelled: queue.Queue[str] = queue.Queue()
        self.is_closed = False
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        self._loop, self._goes_on = asyncio.get_running_loop(), asyncio.Event()
        if self.start_error:
            raise self.start_error
        self.status, self.info = "ready", self.info_when_ready

    def submit(self, request: Request, deliver: Deliver) -> None:
        self.requests.append(request)
        self.started.put(request.request_id)
        self._tasks[request.request_id] = asyncio.create_task(self._play(request, deliver))

    def cancel(self, request_id: str) -> None:
        task = self._tasks.pop(request_id, None)
        if task is not None and task.cancel():
            self.cancelled.put(request_id)

    def go_on(self) -> None:
        """Let what holds go on, now and from now on."""
        self._loop.call_soon_threadsafe(self._goes_on.set)

    async def _play(self, request: Request, deliver: Deliver) -> None:
        for step in self.script(request):
            if step == HOLD:
                await self._goes_on.wait()
            elif not isinstance(step, str):
                if isinstance(step, (FinishEvent, EmbeddingEvent, HeadstartError)):
                    self._tasks.pop(request.request_id, None)
                deliver(step)
                await asyncio.sleep(0)

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    async def report(self) -> WorkerReport:
        return self.current_report

    async def close(self) -> None:
        self.is_closed = True

    def kill(self) -> None:
        self.is_closed = True
