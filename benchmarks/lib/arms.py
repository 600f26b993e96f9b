"""Ways of drafting ("arms"), what they run on, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.harness import Answer, collect, submit_all

from headstart.app.assemble import WARM_UP_SECONDS
from headstart.app.speculation import make_speculator, needs_draft_model
from headstart.config import SchedulerConfig, SpeculationConfig
from headstart.control.controller import Controller
from headstart.extras.bench.arms import read_settings
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.step import StepRecord
from headstart.scheduler.warm_up import WarmUp
from headstart.speculators import SPECULATORS, Speculator
from headstart.types import Engine, Vocab
from headstart.types.engine import DraftContext
from headstart.types.errors import ConfigError, HeadstartError, in_words
from headstart.types.request import Request, RequestStats

LONGEST_DRAFT = 32  # tokens that any arm may verify in a step and slot


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of drafting. No types: off."""

    name: str
    types: tuple[str, ...] = ()
    mode: str = "fixed"
    draft_max: int | None = None

    def config(self) -> SpeculationConfig:
        """As on the command line."""
        return SpeculationConfig(
            spec=self.mode if self.types else "off",
            spec_type=",".join(self.types) or None,
            draft_max=self.draft_max,
            spec_state="none",
        )


OFF = Arm("off", mode="off")


def parse_arm(name: str) -> Arm:
    """As --settings of headstart bench names them; "off" too.

    Raises:
        ConfigError: it is none of these, or names a speculator that does not exist.
    """
    if name == OFF.name:
        return OFF
    wishes = next(iter(read_settings(name).values()), {}).get("speculative", {})
    types = tuple(wishes.get("types", ()))
    if unknown := [one for one in types or (name,) if one not in SPECULATORS]:
        raise ConfigError(
            f"{name!r} names {unknown[0]!r}; there are {', '.join(sorted(SPECULATORS))}"
        )
    return Arm(name, types, wishes["mode"], wishes.get("n_max"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the arms of a comparison run on."""

    engine: Engine  # of the target
    vocab: Vocab
    num_users: int
    draft_engine: Callable[[], Engine] | None = None  # makes one: each arm has its own cache
    heads: DraftContext | None = None  # multi-token heads
    clock: Callable[[], float] = time.perf_counter
    warm_up_seconds: float = WARM_UP_SECONDS  # as a server spends at its first start

    def scheduler(
        self, arm: Arm, wrap: Callable[[list[Speculator]], list[Speculator]] | None = None
    ) -> Scheduler:
        """One that drafts in this way; `wrap` may replace the speculators.

        Raises:
            ConfigError, ModelError: its speculators or the draft model cannot be used.
        """
        parts: dict[str, Callable[[], Any]] = {
            "vocab": lambda: self.vocab,
            "translator": lambda: None,
            "heads": lambda: self.heads,
        }
        if self.draft_engine is not None:
            parts["engine"] = self.draft_engine
        elif needs_draft_model(arm.types):
            raise ConfigError(f"{arm.name} needs a draft model, but none is given")
        speculators = [make_speculator(name, arm.config().options, parts) for name in arm.types]
        if wrap is not None:
            speculators = wrap(speculators)
        guarded = [
            GuardedSpeculator(one, self.engine.vocab_size, self.clock) for one in speculators
        ]
        drafting = Drafting(guarded, arm.config(), Controller(), clock=self.clock)
        limits = SchedulerConfig(parallel=self.num_users)
        scheduler = Scheduler(self.engine, self.vocab, drafting, limits, self.clock)
        if arm.mode == "auto":
            seconds = self.warm_up_seconds
            WarmUp(self.engine, drafting, scheduler.cells, self.clock, seconds).go_on()
        return scheduler


@dataclass(frozen=True, slots=True)
class Run:
    """What answering some requests at once took. Times in seconds of the scheduler's clock."""

    seconds: float
    texts: tuple[tuple[int, ...], ...]  # token ids, one text per request
    stats: tuple[RequestStats, ...]
    steps: tuple[StepRecord, ...]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.texts))


def answer(scheduler: Scheduler, requests: Sequence[Request]) -> Run:
    """Answer all requests at once; their ids are replaced.

    Raises:
        HeadstartError: one of them failed, or a speculator.
    """
    submit_all(scheduler, (replace(one, request_id=str(i)) for i, one in enumerate(requests)))
    found: dict[str, Answer] = {}
    steps: list[StepRecord] = []
    started = scheduler.clock()
    while scheduler.has_work:
        steps.append(scheduler.step())
        collect(scheduler, found)
    seconds = scheduler.clock() - started
    if errors := [one.error for one in found.values() if one.error]:
        raise HeadstartError(f"a request failed: {in_words(errors[0].error)}")
    if failures := [
        f"{speculator.name} in {speculator.failure}"
        for speculator in scheduler.drafting.speculators.values()
        if speculator.failure
    ]:
        raise HeadstartError(f"a speculator failed: {'; '.join(failures)}")
    answers = [found[str(i)] for i in range(len(requests))]
    texts = tuple(tuple(one.tokens) for one in answers)
    return Run(seconds, texts, tuple(one.stats for one in answers), tuple(steps))


@dataclass(slots=True)
class ArmTotals:
    """Runs of one arm on the same requests as the others, summed up."""

    runs: list[Run] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)

    @property
    def num_tokens(self) -> int:
        return sum(run.num_tokens for run in self.runs)

    @property
    def rate(self) -> float:
        """Tokens per second, all users together."""
        return self.num_tokens / self.seconds

    @property
    def full_rate(self) -> float:
        """Tokens per second of the steps in which every user's text was being written.

        A group that is answered at once ends with its slowest text alone, where a server that is
        never idle begins the next one.
        """
        full = [
            step for run in self.runs for step in run.steps if len(step.results) == len(run.texts)
        ]
        seconds = sum(step.finished - step.plan.started for step in full)
        return sum(len(one.emitted) for step in full for one in step.results) / seconds

    @property
    def num_drafted(self) -> int:
        """Draft tokens that were verified."""
        return sum(one.drafts.num_drafted for run in self.runs for one in run.stats)

    @property
    def num_accepted(self) -> int:
        return sum(one.drafts.num_accepted for run in self.runs for one in run.stats)

    @property
    def num_wasted(self) -> int:
        """Draft tokens that were verified for nothing."""
        return self.num_drafted - self.num_accepted

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per verify step and slot, >= 1."""
        return self.num_tokens / max(
            1, sum(one.num_steps for run in self.runs for one in run.stats)
        )

    @property
    def acceptance_rate(self) -> float:
        """Accepted of the draft tokens, in [0, 1]."""
        return self.num_accepted / max(1, self.num_drafted)
