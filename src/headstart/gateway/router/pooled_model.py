"""What a router knows of one model: its settings, and how it is doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.gateway.proxy import Backend
from headstart.gateway.router.child import ChildProcess
from headstart.gateway.router.presets import MAIN, PROCESS_BYTES, Bytes, Estimate, ModelPreset

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
    failure: str = ""  # why it could not be loaded, or ended
    num_requests: int = 0
    last_used: float = 0.0
    info: Mapping[str, Any] = field(default_factory=dict)  # what it says of itself
    estimate: Estimate | None = None
    is_being_estimated: bool = False
    lacks_memory: bool = False  # reported by its child before it ended
    is_retried: bool = False
    waits_for: PooledModel | None = None  # that must be gone before this one is tried again

    @property
    def name(self) -> str:
        return self.preset.name

    @property
    def group(self) -> str:
        return self.preset.group

    @property
    def is_running(self) -> bool:
        return self.status != UNLOADED

    @property
    def is_ready(self) -> bool:
        return self.status == LOADED and not (self.is_stopping or self.is_draining)

    @property
    def has_failed(self) -> bool:
        return self.status == UNLOADED and self.exit_code != 0

    @property
    def needs(self) -> Bytes:
        return self.estimate.needs if self.estimate else {}

    @property
    def held(self) -> Bytes:
        """What it takes now: without its engine, only its processes."""
        return {MAIN: PROCESS_BYTES} if self.status == SLEEPING else self.needs
