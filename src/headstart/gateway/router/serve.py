"""Runs the router: takes the port, serves until a signal, and ends its models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headstart.config import Config
from headstart.config.logs import start_logging
from headstart.gateway.router.app import create_app
from headstart.gateway.router.child import ChildProcess
from headstart.gateway.router.downloads import ModelStore
from headstart.gateway.router.estimate import Estimator
from headstart.gateway.router.eviction import LoadLimits, parse_memory
from headstart.gateway.router.listing import ReadPresets
from headstart.gateway.router.pool import Pool
from headstart.gateway.router.presets import ModelPreset
from headstart.server.extras import Extras
from headstart.server.listen import StoppableServer, run, uvicorn_config
from headstart.types.errors import ConfigError


def serve(
    config: Config,
    read_presets: ReadPresets,
    store: ModelStore,
    settings: Sequence[Mapping[str, Any]] = (),
) -> int:
    """Serve until stopped; return the exit code.

    Args:
        store: where models are downloaded to.
        settings: shown in /props.

    Raises:
        ConfigError: the port cannot be taken, or the settings of a model cannot work.
    """
    start_logging(config)
    presets = read_presets()
    _check_startup(presets, config.router.models_max)
    memory = parse_memory(config.router.models_memory)
    limits = LoadLimits(config.router.models_max, memory)
    pool = Pool(presets, limits, ChildProcess, Estimator(memory))
    extras = Extras.of(config.tools, os.environ)
    config = replace(config, server=extras.applied(config.server))
    app = create_app(config, pool, read_presets, store, settings, extras)

    async def stop() -> None:
        pool.events.close()
        await extras.close()

    server = StoppableServer(uvicorn_config(app, config.server), stop, pool.close)
    run(server, config.server, lambda urls: _announce(urls, presets))
    return 0


def _check_startup(presets: Sequence[ModelPreset], max_models: int) -> None:
    names = [one.name for one in presets if one.loads_on_startup]
    if max_models and len(names) > max_models:
        raise ConfigError(
            f"{len(names)} models have load-on-startup ({', '.join(names)}) but --models-max is "
            f"{max_models}; raise it, or load fewer at the start"
        )


def _announce(urls: Sequence[str], presets: Sequence[ModelPreset]) -> None:
    names = [one.name for one in presets if not one.is_hidden]
    for url in urls:
        print(f"Headstart listens on {url}. It serves {len(names)} models, by name:\n")
        for name in names:
            print(f"  {name}")
        if not names:
            print("  none was found; --models-dir names a folder, --models-preset a file with them")
        print(flush=True)
