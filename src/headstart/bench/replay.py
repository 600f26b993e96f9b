"""Texts that a model once wrote, generated again in simulated time.

The engine knows the texts and decodes nothing: it says the next token of the script and moves a clock by what so many
rows cost. Scheduler, speculators, control and draft models are the real ones, so a way of drafting is measured on real
texts in seconds, without noise, on any machine's cost curve. Python's own time is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from headstart.bench.measure import Arm
from headstart.config import SchedulerConfig
from headstart.control.controller import Controller
from headstart.errors import HeadstartError
from headstart.sampling.params import SamplingParams
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.request import ErrorEvent, FinishEvent, Request, RequestStats
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.seat import Seat
from headstart.speculation import make_speculator
from headstart.types import Batch, Engine, Filters, Logits, MemoryKind, Vocab

CERTAIN = 1e4  # logit of the scripted token: no sampler leaves another one
WARM_UP_SECONDS = 30.0  # simulated


@dataclass(frozen=True, slots=True)
class Text:
    """What a model answered: token ids, and the parameters, which a draft model may share."""

    workload: str
    temperature: float
    seed: int
    prompt: Sequence[int]
    answer: Sequence[int]


def save_texts(path: Path, texts: Sequence[Text]) -> None:
    """Write texts as JSON."""
    path.write_text(json.dumps([asdict(text) for text in texts]), encoding="utf-8")


def load_texts(path: Path) -> list[Text]:
    """Read what `save_texts` wrote."""
    return [Text(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


class CostCurve:
    """Milliseconds of a step by rows: linear between the points given, and beyond the last two."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self._rows, self._ms = sorted(points), [points[rows] for rows in sorted(points)]

    def __call__(self, rows: int) -> float:
        right = next((i for i, x in enumerate(self._rows) if x >= rows), len(self._rows) - 1)
        left, right = max(0, right - 1), max(1, right)
        (x0, y0), (x1, y1) = (self._rows[left], self._ms[left]), (self._rows[right], self._ms[right])
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


class Clock:
    """Simulated seconds; `noise` is the standard deviation of the log of each step's time, its mean stays."""

    def __init__(self, noise: float = 0.0) -> None:
        self.seconds = 0.0
        self._noise, self._random = noise, Random(0)

    def __call__(self) -> float:
        return self.seconds

    def spend(self, milliseconds: float) -> None:
        if self._noise:
            milliseconds *= self._random.lognormvariate(-0.5 * self._noise**2, self._noise)
        self.seconds += milliseconds / 1000.0


class ReplayEngine:
    """`Engine` that says `scripts[seq_id]`, prompt and answer, at the cost of `curve`."""

    memory = MemoryKind.CUT
    max_rollback = 2**30

    def __init__(self, vocab_size: int, curve: CostCurve, clock: Clock, num_slots: int) -> None:
        self.vocab_size = vocab_size
        self.context_size = 2**16
        self.num_cells = self.context_size * num_slots
        self.max_batch_tokens = 4096
        self.max_outputs = 64 * num_slots
        self.scripts: dict[int, Sequence[int]] = {}
        self._curve, self._clock = curve, clock
        self._logits = np.zeros((self.max_outputs, vocab_size), np.float32)

    def decode(self, batch: Batch) -> Logits:
        outputs = batch.wants_logits[: batch.num_rows].nonzero()[0].tolist()
        logits = self._logits[: len(outputs)]
        logits.fill(0.0)
        for row, at in enumerate(outputs):
            script = self.scripts.get(int(batch.seq_ids[at]), ())
            following = int(batch.positions[at]) + 1
            if following < len(script):
                logits[row, script[following]] = CERTAIN
        self._clock.spend(self._curve(batch.num_rows))
        return logits

    def truncate(self, seq_id: int, length: int) -> bool:
        return True

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        return True

    def clear(self, seq_id: int) -> None:
        """There is no cache."""

    def make_filters(self, params: SamplingParams) -> Filters:
        return _KeepAll()


class _KeepAll:
    """No filter: one token is certain anyway."""

    def apply(self, ids: Any, logits: Any, use_xtc: bool) -> tuple[Any, Any]:
        return ids, logits

    def accept(self, token: int) -> None:
        """Nothing here looks at the text."""


class PricedEngine:
    """A draft model's engine whose decodes take simulated time."""

    def __init__(self, engine: Engine, curve: CostCurve, clock: Clock) -> None:
        self._engine, self._curve, self._clock = engine, curve, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def decode(self, batch: Batch) -> Logits:
        self._clock.spend(self._curve(batch.num_rows))
        return self._engine.decode(batch)


@dataclass(frozen=True, slots=True)
class Result:
    """One arm over all texts: simulated seconds after the prompts were read, tokens, and counts of each request."""

    seconds: float
    num_tokens: int
    stats: Sequence[RequestStats]

    @property
    def rate(self) -> float:
        """Tokens per simulated second."""
        return self.num_tokens / self.seconds

    @property
    def drafted(self) -> int:
        return sum(one.num_drafted for one in self.stats)

    @property
    def accepted(self) -> int:
        return sum(one.num_accepted for one in self.stats)

    @property
    def steps(self) -> int:
        return sum(one.num_steps for one in self.stats)


class Replay:
    """One machine and number of users.

    Args:
        vocab: of the model that wrote the texts.
        curve: milliseconds of a target step by rows.
        draft: makes a draft model's engine and names its cost curve; None: no arm may use one.
        noise: of the times, see `Clock`.
    """

    def __init__(
        self,
        vocab: Vocab,
        curve: CostCurve,
        num_users: int = 1,
        draft: tuple[Callable[[], Engine], CostCurve] | None = None,
        noise: float = 0.0,
    ) -> None:
        self._vocab, self._curve, self._num_users, self._draft = vocab, curve, num_users, draft
        self._noise = noise

    def run(self, arm: Arm, texts: Sequence[Text]) -> Result:
        """Answer all texts, as many at once as there are users.

        Raises:
            ConfigError: the arm's speculators cannot be used.
            HeadstartError: a request failed.
        """
        clock = Clock(self._noise)
        engine = ReplayEngine(self._vocab.size, self._curve, clock, self._num_users)
        scheduler = self._scheduler(arm, engine, clock)
        seconds, num_tokens, stats = 0.0, 0, []
        for first in range(0, len(texts), self._num_users):
            group = texts[first : first + self._num_users]
            requests = [_request(f"{first + slot_id}", slot_id, text) for slot_id, text in enumerate(group)]
            engine.scripts = {i: [*text.prompt, *text.answer] for i, text in enumerate(group)}
            _run(scheduler, [replace(request, max_tokens=0) for request in requests])  # prompts are not timed
            started = clock.seconds
            _run(scheduler, requests)
            seconds += clock.seconds - started
            num_tokens += sum(len(text.answer) for text in group)
            for event in scheduler.take_events():
                if isinstance(event, ErrorEvent):
                    raise HeadstartError(f"a request failed: {event.error}: {event.message}")
                if isinstance(event, FinishEvent) and event.stats.num_emitted:
                    stats.append(event.stats)
        return Result(seconds, num_tokens, stats)

    def _scheduler(self, arm: Arm, engine: ReplayEngine, clock: Clock) -> Scheduler:
        parts: Mapping[str, Callable[[], Any]] = {
            "engine": lambda: self._draft_engine(clock),
            "vocabulary": lambda: None,
            "vocab": lambda: self._vocab,
        }
        options = {"draft-model": {"sampling": arm.sampling}}
        seats = [Seat(make_speculator(name, options, parts), clock) for name in arm.types]
        drafting = Drafting(seats, arm.config(), Controller())
        scheduler = Scheduler(engine, self._vocab, drafting, SchedulerConfig(parallel=self._num_users), clock)
        if arm.mode == "auto":
            scheduler.warm_up(WARM_UP_SECONDS)
        return scheduler

    def _draft_engine(self, clock: Clock) -> PricedEngine:
        if self._draft is None:
            raise HeadstartError("this arm needs a draft model, but none is given")
        make, curve = self._draft
        return PricedEngine(make(), curve, clock)


def _run(scheduler: Scheduler, requests: Sequence[Request]) -> None:
    for request in requests:
        scheduler.submit(request)
    while scheduler.has_work:
        scheduler.step()


def _request(request_id: str, slot_id: int, text: Text) -> Request:
    params = SamplingParams(temperature=text.temperature, seed=text.seed)
    return Request(
        request_id=request_id,
        prompt=list(text.prompt),
        sampling=params,
        max_tokens=len(text.answer),
        slot_id=slot_id,
    )
