"""The router's state of one model: settings and status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headstart.gateway.proxy import Backend
from headstart.gateway.router.child import ChildProcess
from headstart.gateway.router.presets import MAIN, PROCESS_BYTES, Bytes, Estimate, ModelPreset
from headstart.types.errors import ConfigError

UNLOADED, LOADING, LOADED, SLEEPING = "unloaded", "loading", "loaded", "sleeping"


@dataclass(slots=True, eq=False)
class PooledModel:
    """A model, loaded or not."""

    preset: ModelPreset
    status: str = UNLOADED
    child: ChildProcess | None = None
    backend: Backend | None = None
    is_stopping: bool = False
    is_draining: bool = False  # takes no new requests
    exit_code: int = 0
    failure: str = ""  # why it could not be loaded, or ended; empty: it was asked to
    costly_failure: str = ""  # the last for which another was unloaded, until it is loaded
    num_requests: int = 0
    waiters: list[asyncio.Future[None]] = field(default_factory=list)  # requests until it is loaded
    waits_since: float = 0.0  # when the first of them came, by the loop's clock
    last_used: float = 0.0
    expiry: asyncio.TimerHandle | None = None  # when it may have been idle for too long
    info: Mapping[str, Any] = field(default_factory=dict)  # by its server, as /v1/models lists it
    estimate: Estimate | None = None
    is_being_estimated: bool = False

    @property
    def name(self) -> str:
        return self.preset.name

    @property
    def is_running(self) -> bool:
        return self.status != UNLOADED

    @property
    def is_ready(self) -> bool:
        return self.status == LOADED and not (self.is_stopping or self.is_draining)

    @property
    def needs(self) -> Bytes:
        return self.estimate.needs if self.estimate else {}

    @property
    def held(self) -> Bytes:
        """Memory in use now; while asleep only that of the processes."""
        return {MAIN: PROCESS_BYTES} if self.status == SLEEPING else self.needs


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """Which models may be loaded together."""

    max_models: int = 0  # 0: any number
    budget: Bytes = field(default_factory=dict)  # a device without one has no limit

    def fits(self, model: PooledModel, others: Sequence[PooledModel]) -> bool:
        if self.max_models and len(others) >= self.max_models:
            return False
        return all(
            needed + sum(one.held.get(device, 0) for one in others) <= self.budget[device]
            for device, needed in model.needs.items()
            if device in self.budget
        )

    def victims(
        self, model: PooledModel, may_go: Sequence[PooledModel], stay: Sequence[PooledModel]
    ) -> list[PooledModel] | None:
        """Which of the models that may go to unload so that it fits: the least recently used, and
        no more than needed. None: unloading all of them would not be enough.
        """
        if not self.fits(model, stay):
            return None
        staying = list(stay)
        for one in sorted(may_go, key=lambda one: one.last_used, reverse=True):
            if self.fits(model, [*staying, one]):
                staying.append(one)
        return [one for one in may_go if one not in staying]


def parse_memory(text: str | None, flag: str = "--models-memory") -> dict[str, int]:
    """MiB by device, as a flag has them -> bytes by device.

    Raises:
        ConfigError: it has another form.
    """
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, has_name, number = part.rpartition("=")
        if not number.strip().isdigit() or not int(number) or (has_name and not name.strip()):
            raise ConfigError(
                f"{flag} has {part!r} but must be MiB, as 16000 or main=16000,CUDA0=22000"
            )
        device = MAIN if name.strip() in ("", "main", "CPU") else name.strip()
        found[device] = int(number) * 2**20
    return found
