"""What a model takes of each device: asked of `headstart devices`, a process that ends at once.

So the router itself never loads libllama, and holds no memory of a GPU.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from headstart.gateway.router.presets import (
    MAIN,
    PROCESS_BYTES,
    Bytes,
    Estimate,
    ModelPreset,
)
from headstart.types.errors import ModelError

MIB = 2**20
CACHE_RAM = "--cache-ram="
LONGEST_CACHE_RAM = 8192  # MiB, as `headstart serve` has it by default
CACHE_RAM_SHARE = 8  # of main memory, for the prompts of one model that lose their slot


class Estimator:
    """Asks for one model after the other, always as if no other one were loaded."""

    def __init__(self, free: Bytes) -> None:
        """`free` is what may be taken, by device; of others what is free at the first question."""
        self._free = dict(free)

    async def __call__(self, preset: ModelPreset) -> Estimate:
        """What this model takes.

        Raises:
            ModelError: it cannot be loaded; the message says why.
        """
        process = await asyncio.create_subprocess_exec(
            *_command(preset, self._free),
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
        self._free = facts["free"] | self._free
        return read_estimate(preset, facts)


def _command(preset: ModelPreset, free: Bytes) -> list[str]:
    command = [sys.executable, "-m", "headstart", "devices", "--json", *preset.engine_arguments]
    if free:
        sizes = ",".join(f"{name}={size // MIB}" for name, size in free.items())
        command.append(f"--free-memory={sizes}")
    return command


def read_estimate(preset: ModelPreset, facts: dict[str, Any]) -> Estimate:
    """The answer of `headstart devices --json`, and what a server takes besides its engine.

    What was chosen so that the model fits is said to its server, which must not choose again: it
    would see what other models leave.
    """
    needs: dict[str, int] = dict(facts["needs"])
    if not needs:  # this platform does not tell
        return Estimate({})
    usable: dict[str, int] = dict(facts["usable"])
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in facts["settings"].items()]
    arguments.append("--fit=off")
    given = [one for one in preset.arguments if one.startswith(CACHE_RAM)]
    if given:
        cache_ram = int(given[-1].removeprefix(CACHE_RAM))
    else:
        share = usable.get(MAIN, 0) // MIB // CACHE_RAM_SHARE
        cache_ram = min(LONGEST_CACHE_RAM, share)
        arguments.append(f"{CACHE_RAM}{cache_ram}")
    needs[MAIN] = needs.get(MAIN, 0) + cache_ram * MIB + PROCESS_BYTES
    # one that takes more than there is, because its file is mapped, takes all there is
    needs = {name: min(size, usable.get(name, size)) for name, size in needs.items()}
    return Estimate(needs, tuple(arguments), usable)
