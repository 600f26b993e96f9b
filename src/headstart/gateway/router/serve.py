"""Runs the router: takes the port, serves until a signal, and ends its models."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import uvicorn

from headstart.config import Config
from headstart.config.logs import start_logging
from headstart.gateway.router.app import create_app
from headstart.gateway.router.child import ChildProcess
from headstart.gateway.router.downloads import ModelStore
from headstart.gateway.router.estimate import Estimator
from headstart.gateway.router.eviction import Room, parse_memory
from headstart.gateway.router.pool import Pool
from headstart.gateway.router.presets import ModelPreset
from headstart.server.extras import Extras
from headstart.server.listen import (
    SHUTDOWN_SECONDS,
    address_of,
    sigterm_is_no_failure,
    take_ports,
    uvicorn_config,
)
from headstart.server.tools import HostedTools, hosted
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)


def serve(
    config: Config,
    read_presets: Callable[[], Sequence[ModelPreset]],
    settings: Sequence[Mapping[str, Any]] = (),
    store: ModelStore | None = None,
) -> int:
    """Serve until stopped; return the exit code.

    Args:
        read_presets: which models there are now; raises ConfigError.
        settings: shown in /props.
        store: where models are downloaded to.

    Raises:
        ConfigError: the port cannot be taken, or the settings of a model cannot work.
    """
    start_logging(config)
    presets = read_presets()
    _check_startup(presets, config.router.models_max)
    memory = parse_memory(config.router.models_memory)
    room = Room(config.router.models_max, memory)
    pools: list[Pool] = []

    def make_pool() -> Pool:
        pools.append(Pool(presets, room, ChildProcess, Estimator(memory)))
        return pools[0]

    extras = Extras.of(config.tools, os.environ)
    config = replace(config, server=extras.applied(config.server))
    app = create_app(config, make_pool, read_presets, settings, extras, store)
    server = _RouterServer(pools, hosted(app), uvicorn_config(app, config.server))
    with ExitStack() as stack:
        listeners = take_ports(config.server, stack)
        stack.enter_context(sigterm_is_no_failure(server))
        scheme = "https" if config.server.ssl_cert_file else "http"
        for one in listeners:
            _announce(address_of(one, scheme) + config.server.api_prefix, presets)
        server.run(sockets=listeners)
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

    def __init__(self, pools: Sequence[Pool], tools: HostedTools, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._pools = pools
        self._tools = tools

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for pool in self._pools:
            pool.events.close()
        await self._tools.close()
        closing = asyncio.create_task(self._close())
        await super().shutdown(sockets)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing

    async def _close(self) -> None:
        await asyncio.sleep(SHUTDOWN_SECONDS)
        for pool in self._pools:
            await pool.close()


def _announce(url: str, presets: Sequence[ModelPreset]) -> None:
    names = [one.name for one in presets if not one.is_hidden]
    print(f"Headstart listens on {url}. It serves {len(names)} models, by name:\n")
    for name in names:
        print(f"  {name}")
    if not names:
        print("  none was found; --models-dir names a folder, --models-preset a file with them")
    print(flush=True)
