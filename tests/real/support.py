"""Real models for tests: tiny ones written once, and schedulers over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from tests.real.answers import make_requests
from tests.server.serving import serving_models

from headstart.app import demo
from headstart.app.assemble import Models
from headstart.app.exact import make_exact
from headstart.config import (
    Config,
    EngineConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculationConfig,
)
from headstart.engine.context import LlamaEngine
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.types.request import Request


def engine_of(path: Path, *, exact: bool = False) -> LlamaEngine:
    """A small engine over one file."""
    settings = EngineConfig(context=256, batch=256, threads=1, gpu_layers=0, exact=exact)
    engine = LlamaEngine(Model(path, settings), settings, Limits(2, 16, 8))
    if exact:
        make_exact(engine)
    return engine


def without_draft(path: Path) -> Models:
    return Models(path, None, is_demo=False)


@contextmanager
def serving_demo(
    scheduler: SchedulerConfig | None = None, server: ServerConfig | None = None, **engine: Any
) -> Iterator[httpx2.Client]:
    """A client of a server of the embedded target alone, with two slots."""
    config = Config(
        engine=EngineConfig(context=1024, threads=1, **engine),
        scheduler=scheduler or SchedulerConfig(parallel=2),
        speculation=SpeculationConfig(spec_state="none"),
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
