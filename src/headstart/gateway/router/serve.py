"""Runs the router: takes the port, serves until a signal, and ends its models."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headstart.config import Config
from headstart.config.logs import start_logging
from headstart.gateway.proxy import in_front
from headstart.gateway.router.app import create_app
from headstart.gateway.router.downloads import ModelStore
from headstart.gateway.router.listing import OwnRoutes, ReadPresets
from headstart.gateway.router.pool import Pool
from headstart.gateway.router.pooled_model import LoadLimits, parse_memory
from headstart.gateway.router.presets import MAIN, PROCESS_BYTES, Estimate, ModelPreset
from headstart.server import extra_routes
from headstart.server.listen import StoppableServer, run, uvicorn_config
from headstart.types.errors import ConfigError, ModelError


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
    start_logging(config.log)
    presets = read_presets()
    _check_startup(presets, config.router.models_max)
    memory = parse_memory(config.router.models_memory)
    limits = LoadLimits(config.router.models_max, memory)
    pool = Pool(presets, limits, measure=partial(estimate, dict(memory)))
    extras = extra_routes.load_extras(config.tools, os.environ)
    server_config = in_front(extra_routes.applied(extras, config.server))
    config = replace(config, server=server_config)
    app = create_app(OwnRoutes(config, pool, read_presets, store, settings), extras)

    async def stop() -> None:
        pool.events.close()
        await extra_routes.close(extras)

    server = StoppableServer(uvicorn_config(app, config.server), stop, pool.close)
    run(server, config.server, lambda url: _announce(url, presets))
    return 0


def _check_startup(presets: Sequence[ModelPreset], max_models: int) -> None:
    names = [one.name for one in presets if one.loads_on_startup]
    if max_models and len(names) > max_models:
        raise ConfigError(
            f"{len(names)} models have load-on-startup ({', '.join(names)}) but --models-max is "
            f"{max_models}; raise it, or load fewer at the start"
        )


def _announce(url: str, presets: Sequence[ModelPreset]) -> None:
    print(f"Headstart listens on {url} and serves these models by name:\n")
    names = [one.name for one in presets if not one.is_hidden]
    for name in names:
        print(f"  {name}")
    if not names:
        print("  none was found; --models-dir names a folder, --models-preset a file with them")
    print(flush=True)


async def estimate(free: dict[str, int], preset: ModelPreset) -> Estimate:
    """Memory that a model needs, by `headstart devices`, as if no other one were loaded.

    That is a separate process, so the router never loads libllama and holds no GPU memory.

    Args:
        free: usable bytes by device; the first estimate adds free memory of the others.

    Raises:
        ModelError: it cannot be loaded, and why.
    """
    command = [sys.executable, "-m", "headstart", "devices", "--json", *preset.arguments]
    if free:
        sizes = (f"{name}={size >> 20}" for name, size in free.items())
        command.append(f"--free-memory={','.join(sizes)}")
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(preset.environment),
    )
    try:
        output, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise ModelError(lines[-1].removeprefix("headstart: error: "))
    facts = json.loads(output)
    free |= facts["free"] | free
    return read_estimate(preset, facts)


def read_estimate(preset: ModelPreset, facts: dict[str, Any]) -> Estimate:
    """Parse the output of `headstart devices --json`, and add a server's other memory.

    The settings that make the model fit become arguments of its server, which would choose others,
    because it sees only the memory left by other models.
    """
    needs: dict[str, int] = dict(facts["needs"])
    if not needs:  # not available on this platform
        return Estimate({})
    usable: dict[str, int] = dict(facts["usable"])
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in facts["settings"].items()]
    arguments.append("--fit=off")
    flag = "--cache-ram="
    given = [one for one in preset.arguments if one.startswith(flag)]
    eighth = usable.get(MAIN, 0) >> 23  # of main memory, in MiB
    cache_ram = int(given[-1].removeprefix(flag)) if given else min(8192, eighth)
    if not 0 <= cache_ram < 4 * eighth:  # half, all that a server takes: no second one would fit
        cache_ram = eighth
    arguments.append(f"{flag}{cache_ram}")
    needs[MAIN] = needs.get(MAIN, 0) + (cache_ram << 20) + PROCESS_BYTES
    # a model that needs more than there is, because its file is mapped, takes all there is
    needs = {name: min(size, usable.get(name, size)) for name, size in needs.items()}
    return Estimate(needs, tuple(arguments), usable)
