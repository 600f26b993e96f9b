"""Run ways of drafting ("arms") side by side on one loaded target and time them.

All arms share the target's engine and its cache, so a prompt is read once and then answered by every arm in turn: what
slows the machine down slows all of them. Each arm has speculators, a controller and a draft model's cache of its own,
which live as long as in a server; no arm sees a prompt twice, so no corpus knows an answer beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headstart.assemble import WARM_UP_SECONDS, Models, build_scheduler
from headstart.bench.scripted import ScriptedEngine
from headstart.bench.workloads import Prompt
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.control.controller import Controller
from headstart.errors import ConfigError, HeadstartError
from headstart.sampling.params import SamplingParams
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.request import ErrorEvent, FinishEvent, Request, RequestStats, TokenEvent
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.seat import Seat
from headstart.speculation import make_speculator
from headstart.speculators import Speculator
from headstart.types import Engine, StepStats, Vocab

LONGEST_DRAFT = 32
DRAFT_MODEL = "draft-model"


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of drafting. No types: off."""

    name: str
    types: tuple[str, ...] = ()
    mode: str = "fixed"
    draft_max: int | None = None
    sampling: str = "auto"  # of a draft model

    def config(self) -> SpeculationConfig:
        """As on the command line."""
        return SpeculationConfig(
            spec=self.mode if self.types else "off",
            spec_type=",".join(self.types) or None,
            draft_max=self.draft_max,
            draft_sampling=self.sampling,
            spec_state="none",
        )


OFF = Arm("off", mode="off")


def parse_arm(name: str) -> Arm:
    """From "off", "suffix,draft-model@4" (a fixed length) or "auto:suffix,draft-model".

    Raises:
        ConfigError: it is none of these.
    """
    if name == OFF.name:
        return OFF
    mode, _, types = name.rpartition(":")
    types, _, length = types.partition("@")
    if mode not in ("", "auto") or not types or not (length.isdecimal() if mode == "" else length == ""):
        raise ConfigError(f"{name!r} is no way of drafting; write off, TYPES@LENGTH or auto:TYPES")
    return Arm(name, tuple(types.split(",")), mode or "fixed", int(length) if length else None)


@dataclass(frozen=True, slots=True)
class Run:
    """What answering some prompts at once took. Times in seconds."""

    seconds: float
    texts: tuple[tuple[int, ...], ...]  # token ids, one text per prompt
    stats: tuple[RequestStats, ...]
    steps: tuple[StepStats, ...]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def num_wasted(self) -> int:
        """Draft tokens that were verified for nothing."""
        return sum(one.num_drafted - one.num_accepted for one in self.stats)

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per verify step and slot, >= 1."""
        return self.num_tokens / max(1, sum(one.num_steps for one in self.stats))

    @property
    def acceptance_rate(self) -> float:
        """Accepted of the draft tokens."""
        return sum(one.num_accepted for one in self.stats) / max(1, sum(one.num_drafted for one in self.stats))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Which models, on how many slots."""

    target: Path
    draft: Path | None = None
    num_users: int = 1
    context: int = 1536  # tokens per user
    threads: int | None = None
    deterministic: bool = False

    def engine(self) -> EngineConfig:
        return EngineConfig(
            context=self.context * self.num_users,
            threads=self.threads,
            ubatch=512,
            deterministic=self.deterministic,
        )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How all prompts of a comparison are answered."""

    temperature: float
    seed: int = 1
    max_tokens: int = 128


class Lab:
    """One target, and the arms that are compared on it."""

    def __init__(self, setting: Setting) -> None:
        """Load the target.

        Raises:
            ConfigError, ModelError: a model cannot be used.
        """
        self.setting = setting
        speculation = SpeculationConfig(
            spec="fixed", spec_type="ngram-simple", draft_max=LONGEST_DRAFT, spec_state="none"
        )
        loaded = self._load(setting.target, speculation)
        self.engine = ScriptedEngine(loaded.engine)
        self.plain_engine: Engine = loaded.engine
        self.vocab: Vocab = loaded.vocab
        self._last: Scheduler | None = None  # whose slots know what is in the cache
        self._num_requests = 0
        self._reader = self.arm(OFF)

    def arm(self, arm: Arm, wrap: Callable[[list[Speculator]], list[Speculator]] | None = None) -> Scheduler:
        """A scheduler that drafts in this way; `wrap` may replace the speculators.

        Raises:
            ConfigError, ModelError: its speculators or the draft model cannot be used.
        """
        config = arm.config()
        parts: Mapping[str, Callable[[], Any]] = {
            "engine": self.draft_engine,
            "vocabulary": lambda: None,
            "vocab": lambda: self.vocab,
        }
        options = {DRAFT_MODEL: {"sampling": arm.sampling}}
        speculators = [make_speculator(name, options, parts) for name in arm.types]
        if wrap is not None:
            speculators = wrap(speculators)
        drafting = Drafting([Seat(speculator) for speculator in speculators], config, Controller())
        scheduler = Scheduler(self.engine, self.vocab, drafting, SchedulerConfig(parallel=self.setting.num_users))
        if arm.mode == "auto":
            scheduler.warm_up(WARM_UP_SECONDS)  # as a server does at its first start
        return scheduler

    def requests(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Request]:
        """One request per prompt, prompt i for slot i; they differ in seed."""
        made = []
        for slot_id, prompt in enumerate(prompts):
            script = self._tokenize(prompt.script) if prompt.script else []
            limit = len(script) or min(sampling.max_tokens, prompt.max_tokens)
            values: dict[str, Any] = {"temperature": sampling.temperature, **prompt.sampling}
            params = SamplingParams(**values, seed=sampling.seed + slot_id)
            tokens = self._tokenize(prompt.text)[-(self.setting.context - limit - 1) :]
            made.append(Request(request_id="", prompt=tokens, sampling=params, max_tokens=limit, slot_id=slot_id))
        return made

    def read(self, prompts: Sequence[Prompt], requests: Sequence[Request]) -> None:
        """Bring the prompts into the cache, so that no arm's time has them in it; set the scripts."""
        self.engine.scripts = {
            slot_id: [*request.prompt, *self._tokenize(prompt.script)]
            for slot_id, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
            if prompt.script
        }
        self.run(self._reader, [replace(request, max_tokens=0) for request in requests])

    def run(self, scheduler: Scheduler, requests: Sequence[Request]) -> Run:
        """Answer all requests at once.

        Raises:
            HeadstartError: one of them failed.
        """
        self._hand_over(scheduler)
        names = []
        for request in requests:
            self._num_requests += 1
            names.append(f"{self._num_requests}")
            scheduler.submit(replace(request, request_id=names[-1]))
        texts: dict[str, list[int]] = {name: [] for name in names}
        stats: dict[str, RequestStats] = {}
        steps: list[StepStats] = []
        started = time.perf_counter()
        while scheduler.has_work:
            steps.append(scheduler.step())
            for event in scheduler.take_events():
                if isinstance(event, TokenEvent):
                    texts[event.request_id] += event.tokens
                elif isinstance(event, FinishEvent):
                    stats[event.request_id] = event.stats
                elif isinstance(event, ErrorEvent):
                    raise HeadstartError(f"a request failed: {event.error}: {event.message}")
        seconds = time.perf_counter() - started
        return Run(seconds, tuple(tuple(texts[n]) for n in names), tuple(stats[n] for n in names), tuple(steps))

    def _hand_over(self, scheduler: Scheduler) -> None:
        """Tell a scheduler what the last one left in the cache they share."""
        if self._last is not None and self._last is not scheduler:
            for ours, theirs in zip(scheduler.slots, self._last.slots, strict=True):
                ours.kept = list(theirs.kept)
        self._last = scheduler

    def draft_engine(self) -> Engine:
        """Load the draft model."""
        if self.setting.draft is None:
            raise HeadstartError("this arm needs a draft model, but the setting names none")
        return self._load(self.setting.draft, OFF.config()).engine

    def _load(self, path: Path, speculation: SpeculationConfig) -> Scheduler:
        config = Config(
            engine=self.setting.engine(),
            scheduler=SchedulerConfig(parallel=self.setting.num_users),
            speculation=speculation,
        )
        return build_scheduler(config, Models(path, None, is_demo=False))[0]

    def _tokenize(self, text: str) -> list[int]:
        return self.vocab.tokenize(text, add_special=False, parse_special=True)


@dataclass(slots=True)
class Tally:
    """Runs of one arm on the same prompts as the others, summed up."""

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
    def acceptance_length(self) -> float:
        return self.num_tokens / max(1, sum(one.num_steps for run in self.runs for one in run.stats))

    @property
    def acceptance_rate(self) -> float:
        drafted = sum(one.num_drafted for run in self.runs for one in run.stats)
        return sum(one.num_accepted for run in self.runs for one in run.stats) / max(1, drafted)

    @property
    def num_wasted(self) -> int:
        return sum(run.num_wasted for run in self.runs)

    def num_differences(self, other: Tally) -> int:
        """Texts that are not the same token for token. The default mode may flip near ties."""
        return sum(
            ours != theirs
            for run, twin in zip(self.runs, other.runs, strict=True)
            for ours, theirs in zip(run.texts, twin.texts, strict=True)
        )


def compare(
    lab: Lab,
    schedulers: Mapping[str, Scheduler],
    groups: Sequence[Sequence[Prompt]],
    sampling: Sampling,
    after: Callable[[str, Run, Sequence[Request]], None] = lambda name, run, requests: None,
) -> dict[str, Tally]:
    """Answer each group of prompts with every arm; who begins changes from group to group."""
    tallies = {name: Tally() for name in schedulers}
    names = list(schedulers)
    for turn, prompts in enumerate(groups):
        requests = lab.requests(prompts, sampling)
        lab.read(prompts, requests)
        start = turn * 5 % len(names)
        for name in names[start:] + names[:start]:
            run = lab.run(schedulers[name], requests)
            tallies[name].runs.append(run)
            after(name, run, requests)
    return tallies


def inflated_models(folder: Path, *names: str) -> list[Path]:
    """Paths of models by their preset in benchmarks/inflate.py; the path of a GGUF file stands for itself.

    Raises:
        ConfigError: a file is missing; the message says how to build it.
    """
    paths = [Path(name) if name.endswith(".gguf") else folder / f"{name}.gguf" for name in names]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise ConfigError(
            f"{', '.join(map(str, missing))} is missing; build it: "
            f"python benchmarks/inflate.py {' '.join(path.stem for path in missing)} -o {folder}"
        )
    return paths
