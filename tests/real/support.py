"""Real models for tests: tiny ones written once, and schedulers over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from numpy.typing import NDArray
from tests.real.answers import Setting, comparing_once, make_requests
from tests.server.serving import serving_models

from headstart.app import demo
from headstart.app.assemble import Models
from headstart.app.exact import make_exact
from headstart.config import Config, EngineConfig, SchedulerConfig, ServerConfig, SpeculationConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.scheduler.disk_cache import DiskCache
from headstart.scheduler.scheduler import Scheduler
from headstart.types import Batch
from headstart.types.request import Request

SMALL = Limits(2, 16, 8)


def engine_of(path: Path, limits: Limits = SMALL, **settings: Any) -> LlamaEngine:
    """A small engine over one file."""
    small = {"context": 256, "batch": 256, "threads": 1, "gpu_layers": 0}
    config = EngineConfig(**small | settings)
    engine = LlamaEngine(Model(path, config), config, limits)
    if config.exact:
        with comparing_once():
            make_exact(engine)
    return engine


def decode(
    engine: LlamaEngine,
    tokens: Sequence[int],
    position: int = 0,
    num_outputs: int = 1,
    seq_id: int = 0,
) -> NDArray[np.float32]:
    """The last rows of some tokens of one sequence."""
    batch = Batch(engine.max_batch_tokens)
    batch.add(seq_id, position, tokens, num_outputs)
    return engine.decode(batch).copy()


def without_draft(path: Path) -> Models:
    return Models(path, None, is_demo=False)


def with_prompts_on_disk(setting: Setting, folder: Path) -> Config:
    config = setting.config()
    limits = replace(config.scheduler, cache_disk=100, cache_disk_path=str(folder))
    return replace(config, scheduler=limits)


def disk_of(scheduler: Scheduler) -> DiskCache:
    """Its thread has done what it was told so far."""
    disk = scheduler.cache.offloading.disk
    assert disk is not None
    disk._writer.submit(int).result()
    return disk


@contextmanager
def serving_demo(
    scheduler: SchedulerConfig | None = None, server: ServerConfig | None = None, **engine: Any
) -> Iterator[httpx2.Client]:
    """A client of a server of the embedded target alone, with two slots and no drafts."""
    config = Config(
        engine=EngineConfig(context=1024, threads=1, **engine),
        scheduler=scheduler or SchedulerConfig(parallel=2),
        speculation=SpeculationConfig(spec="off"),
        server=server or ServerConfig(),
    )
    with serving_models(config, without_draft(demo.path(demo.TARGET))) as client:
        yield client


def byte_requests(num: int, temperature: float = 0.8) -> list[Request]:
    """Requests of byte tokens, for the tiny models' vocabulary; a third of them begins alike."""
    return [
        replace(r, prompt=tuple(t % 256 for t in r.prompt[: 8 + 5 * i]))
        for i, r in enumerate(make_requests(num, temperature, max_tokens=24))
    ]
