"""Runs the router: takes the port, serves until a signal, and ends its models."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import uvicorn

from headstart.config import Config
from headstart.config.logs import start_logging
from headstart.gateway.listen import run
from headstart.gateway.router.app import create_app
from headstart.gateway.router.child import ChildProcess
from headstart.gateway.router.downloads import ModelStore
from headstart.gateway.router.estimate import Estimator
from headstart.gateway.router.eviction import LoadLimits, parse_memory
from headstart.gateway.router.listing import ReadPresets
from headstart.gateway.router.pool import Pool
from headstart.gateway.router.presets import ModelPreset
from headstart.server.extras import Extras
from headstart.server.listen import SHUTDOWN_SECONDS, uvicorn_config
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
    server = _RouterServer(pool, extras, uvicorn_config(app, config.server))
    run(server, config.server, lambda urls: _announce(urls, presets))
    return 0


def _check_startup(presets: Sequence[ModelPreset], max_models: int) -> None:
    names = [one.name for one in presets if one.loads_on_startup]
    if max_models and len(names) > max_models:
        raise ConfigError(
            f"{len(names)} models have load-on-startup ({', '.join(names)}) but --models-max is "
            f"{max_models}; raise it, or load fewer at the start"
        )


class _RouterServer(uvicorn.Server):
    """Ends the models while answers are still in flight, so that those end with an error."""

    def __init__(self, pool: Pool, extras: Extras, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._pool, self._extras = pool, extras

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pool.events.close()
        await self._extras.close()
        closing = asyncio.create_task(self._close())
        await super().shutdown(sockets)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing

    async def _close(self) -> None:
        await asyncio.sleep(SHUTDOWN_SECONDS)
        await self._pool.close()


def _announce(urls: Sequence[str], presets: Sequence[ModelPreset]) -> None:
    names = [one.name for one in presets if not one.is_hidden]
    for url in urls:
        print(f"Headstart listens on {url}. It serves {len(names)} models, by name:\n")
        for name in names:
            print(f"  {name}")
        if not names:
            print("  none was found; --models-dir names a folder, --models-preset a file with them")
        print(flush=True)
