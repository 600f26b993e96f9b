"""What a model takes of each device, as `headstart devices` says in a process of its own.

So the router itself never loads libllama and holds no memory of a GPU.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from headstart.gateway.router.presets import MAIN, PROCESS_BYTES, Bytes, Estimate, ModelPreset
from headstart.types.errors import ModelError

MIB = 2**20
CACHE_RAM = "--cache-ram="


class Estimator:
    """Estimates models, each as if no other one were loaded.

    Args:
        free: what may be taken of a device; of other devices what is free at the first estimate.
    """

    def __init__(self, free: Bytes) -> None:
        self._free = dict(free)

    async def __call__(self, preset: ModelPreset) -> Estimate:
        """What this model takes.

        Raises:
            ModelError: it cannot be loaded; the message says why.
        """
        command = [sys.executable, "-m", "headstart", "devices", "--json", *preset.engine_arguments]
        if self._free:
            sizes = (f"{name}={size // MIB}" for name, size in self._free.items())
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
        self._free = facts["free"] | self._free
        return read_estimate(preset, facts)


def read_estimate(preset: ModelPreset, facts: dict[str, Any]) -> Estimate:
    """Read what `headstart devices --json` prints, and add what a server takes beside its engine.

    The settings that make the model fit become arguments of its server, which would choose others:
    it sees only the memory that other models leave.
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
    else:  # an eighth of main memory, at most the default of `headstart serve`, in MiB
        cache_ram = min(8192, usable.get(MAIN, 0) // MIB // 8)
        arguments.append(f"{CACHE_RAM}{cache_ram}")
    needs[MAIN] = needs.get(MAIN, 0) + cache_ram * MIB + PROCESS_BYTES
    # a model that needs more than there is, because its file is mapped, takes all there is
    needs = {name: min(size, usable.get(name, size)) for name, size in needs.items()}
    return Estimate(needs, tuple(arguments), usable)
