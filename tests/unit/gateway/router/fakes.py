"""Children without processes, for the logic of the pool."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence

from headstart.gateway.router.child import ChildProcess
from headstart.gateway.router.pool import Pool
from headstart.gateway.router.pooled_model import LOADED, LoadLimits, PooledModel
from headstart.gateway.router.presets import CACHE, Estimate, ModelPreset
from headstart.types.errors import ModelError


def preset(name: str, **more) -> ModelPreset:
    return ModelPreset(name=name, source="preset", **more)


class FakeChild(ChildProcess):
    """Loads in one turn of the loop, unless it is held or fails."""

    def __init__(
        self, fleet: FakeChildren, name: str, arguments: tuple[str, ...], *tells: Callable
    ) -> None:
        self.key, self.name, self.arguments = "inner", name, arguments
        self.on_state, self._on_exit = tells
        self._fleet, self._is_over = fleet, False
        self._task = asyncio.create_task(self._start())

    async def _start(self) -> None:
        await asyncio.sleep(0)
        await self._fleet.gate.wait()
        if reason := self._fleet.failures.get(self.name, [None]).pop(0):
            if reason != "-":
                self.on_state({"state": "failed", **reason})
            self.end(2)
            return
        self.on_state({"state": LOADED, "url": self._fleet.url})

    def end(self, code: int) -> None:
        if not self._is_over:
            self._is_over = True
            self._fleet.log.append(f"{self.name} ended")
            self._on_exit(code)

    def stop(self) -> None:
        asyncio.get_running_loop().call_soon(self.end, 0)

    def kill(self) -> None:
        self._task.cancel()
        asyncio.get_running_loop().call_soon(self.end, -9)


class FakeChildren:
    """Makes children and remembers what happened to them."""

    def __init__(self, url: str = "http://127.0.0.1:1") -> None:
        self.url = url
        self.log: list[str] = []
        self.children: dict[str, FakeChild] = {}
        self.failures: dict[str, list] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    def start(
        self,
        preset: ModelPreset,
        arguments: Sequence[str],
        on_state: Callable[..., None],
        on_exit: Callable[[int], None],
    ) -> FakeChild:
        self.log.append(f"{preset.name} started")
        child = FakeChild(self, preset.name, tuple(arguments), on_state, on_exit)
        self.children[preset.name] = child
        return child


def cached(name: str) -> ModelPreset:
    return ModelPreset(name=name, source=CACHE, arguments=())


class FakeStore:
    """Its program says what `lines` are, then ends with `code`, or never where that is None."""

    def __init__(self, presets: list[ModelPreset] | None = None) -> None:
        self.presets = [] if presets is None else presets
        self.lines: list[dict[str, object]] = [{"source": "x", "done": 1, "total": 2}]
        self.code: int | None = 0
        self.removed: list[str] = []
        self.dropped: list[str] = []

    def check(self, name: str) -> None:
        if "/" not in name:
            raise ModelError(f"there is no {name}")

    def download(self, name: str) -> tuple[list[str], dict[str, str]]:
        if self.code == 0:
            self.presets.append(cached(name))
        text = "".join(json.dumps(line) + chr(10) for line in self.lines)
        end = "time.sleep(60)" if self.code is None else f"sys.exit({self.code})"
        program = f"import sys, time; print({text!r}, end='', flush=True); {end}"
        return [sys.executable, "-c", program], dict(os.environ)

    def drop_unfinished(self, name: str) -> None:
        self.dropped.append(name)

    def remove(self, name: str) -> None:
        self.removed.append(name)
        self.presets[:] = [one for one in self.presets if one.name != name]


def estimates(usable: int = 10, **sizes: int) -> Callable:
    async def measure(preset: ModelPreset) -> Estimate:
        await asyncio.sleep(0)
        needs, free = {"main memory": sizes[preset.name]}, {"main memory": usable}
        return Estimate(needs, ("--fit=off",), free)

    return measure


def pool_of(
    children: FakeChildren, *models: str | ModelPreset, max_models: int = 0, measure=None
) -> Pool:
    presets = [one if isinstance(one, ModelPreset) else preset(one) for one in models]
    ticks = iter(range(1, 10**9))
    return Pool(
        presets, LoadLimits(max_models), children.start, measure, lambda: float(next(ticks))
    )


async def use(pool: Pool, *names: str) -> PooledModel:
    """A request to each, over at once."""
    for name in names:
        model = pool.models[name]
        await pool.acquire(model)
        pool.release(model)
    return model


def loaded(pool: Pool) -> set[str]:
    return {name for name, model in pool.models.items() if model.status == LOADED}
