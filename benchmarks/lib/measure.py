"""Arms on one loaded target: they share its engine and cache, so a prompt is read once.

Each arm has speculators, a controller and a draft model's cache of its own, which live as long as
in a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.lib.arms import LONGEST_DRAFT, OFF, Arm, Machine, Run, answer
from benchmarks.lib.engines import ScriptedEngine
from benchmarks.lib.workloads import Prompt

from headstart.app.assemble import Models, build_scheduler
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.scheduler.scheduler import Scheduler
from headstart.types import Engine, Vocab
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Which models, on how many slots."""

    target: Path
    draft: Path | None = None
    num_users: int = 1
    context: int = 1536  # tokens per user
    threads: int | None = None

    def engine(self) -> EngineConfig:
        return EngineConfig(
            context=self.context * self.num_users,
            threads=self.threads,
            ubatch=512,
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
        self._machine = Machine(
            engine=self.engine,
            vocab=self.vocab,
            num_users=setting.num_users,
            draft_engine=None if setting.draft is None else self.draft_engine,
        )
        self._last: Scheduler | None = None  # whose slots know what is in the cache
        self._reader = self.arm(OFF)

    def arm(self, arm: Arm) -> Scheduler:
        """A scheduler that drafts in this way; see `Machine.scheduler`."""
        return self._machine.scheduler(arm)

    def requests(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Request]:
        """One request per prompt, prompt i for slot i; they differ in seed."""
        made = []
        for slot_id, prompt in enumerate(prompts):
            script = self._tokenize(prompt.script) if prompt.script else []
            limit = len(script) or min(sampling.max_tokens, prompt.max_tokens)
            values: dict[str, Any] = {"temperature": sampling.temperature, **prompt.sampling}
            params = SamplingParams(**values, seed=sampling.seed + slot_id)
            tokens = self._tokenize(prompt.text)[-(self.setting.context - limit - 1) :]
            made.append(
                Request(
                    request_id="", prompt=tokens, sampling=params, max_tokens=limit, slot_id=slot_id
                )
            )
        return made

    def read(self, prompts: Sequence[Prompt], requests: Sequence[Request]) -> None:
        """Set the scripts, and bring the prompts into the cache, so that no arm's time has them."""
        self.engine.scripts = {
            slot_id: [*request.prompt, *self._tokenize(prompt.script)]
            for slot_id, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
            if prompt.script
        }
        self.run(self._reader, [replace(request, max_tokens=0) for request in requests])

    def run(self, scheduler: Scheduler, requests: Sequence[Request]) -> Run:
        """Answer all requests at once with one arm.

        Raises:
            HeadstartError: one of them failed.
        """
        self._hand_over(scheduler)
        return answer(scheduler, requests)

    def _hand_over(self, scheduler: Scheduler) -> None:
        """Tell a scheduler what the last one left in the cache they share."""
        if self._last is not None and self._last is not scheduler:
            for ours, theirs in zip(scheduler.cells, self._last.cells, strict=True):
                ours.hold(list(theirs.tokens))
        self._last = scheduler

    def draft_engine(self) -> Engine:
        """Load the draft model, which the setting must name."""
        assert self.setting.draft is not None
        reads = Arm("reads", ("suffix",), draft_max=15)  # 16 outputs, as a server's draft model
        return self._load(self.setting.draft, reads.config()).engine

    def _load(self, path: Path, speculation: SpeculationConfig) -> Scheduler:
        config = Config(
            engine=self.setting.engine(),
            scheduler=SchedulerConfig(parallel=self.setting.num_users),
            speculation=speculation,
        )
        return build_scheduler(config, Models(path, None, is_demo=False))[0]

    def _tokenize(self, text: str) -> list[int]:
        return self.vocab.tokenize(text, add_special=False, parse_special=True)
