"""A replica as a Ray Serve deployment: starts a server, reports its address and its load."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import ray
from ray import serve

from headstart.extras.cluster.child import ServerChild
from headstart.extras.cluster.control_states import ControlStates, hardware, state_key
from headstart.extras.cluster.scaling import RUNNING, WAITING
from headstart.types.errors import ModelError

log = logging.getLogger(__name__)

ILL_SECONDS = 120.0  # that a server may be ill before Ray starts another replica


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Settings of every replica."""

    arguments: tuple[str, ...]  # of `headstart serve`
    key: str = field(repr=False)
    drain_seconds: float = 600.0


class ReplicaActor:
    """One server; made and ended by Ray Serve."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self._settings = settings
        self._host = ray.util.get_node_ip_address()
        self._name = serve.get_replica_context().replica_id.unique_id
        self._folder = tempfile.TemporaryDirectory(prefix="headstart-replica-")
        self._state_file = Path(self._folder.name) / "control.json"
        self._state_key = state_key(settings.arguments, hardware())
        self._healthy_at = time.monotonic()
        self._saved, self._had_state = b"", False
        self._server = self._start()
        self._saving = asyncio.get_running_loop().create_task(self._save_now_and_then())

    def _start(self) -> ServerChild:
        """Start with the saved state of control; without it if it belongs to another model."""
        state = ray.get(_store().find.remote(self._state_key))
        if state:
            self._state_file.write_bytes(state)
            self._saved, self._had_state = state, True
        try:
            return self._launch()
        except ModelError:
            if not state:
                raise
            log.warning("the server did not start with the control state that was kept")
            self._state_file.unlink(missing_ok=True)
            self._had_state = False
            return self._launch()

    def _launch(self) -> ServerChild:
        own = (f"--spec-state={self._state_file}",)
        settings = self._settings
        server = ServerChild((*own, *settings.arguments), host=self._host, key=settings.key)
        try:
            server.wait()
        except ModelError:
            server.stop()
            raise
        return server

    async def describe(self) -> dict[str, Any]:
        """Name and address of the replica."""
        return {
            "name": self._name,
            "url": self._server.url,
            "pid": self._server.pid,
            "had_state": self._had_state,
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The counts that Ray scales by."""
        try:
            running, waiting = await asyncio.to_thread(self._server.counts)
        except httpx2.HTTPError:
            running = waiting = 0
        return {RUNNING: float(running), WAITING: float(waiting)}

    async def check_health(self) -> None:
        """Raise if another replica must take this one's place."""
        if not self._server.is_running:
            raise RuntimeError("the server's process ended")
        now = time.monotonic()
        if await asyncio.to_thread(self._server.is_healthy):
            self._healthy_at = now
        elif now - self._healthy_at > ILL_SECONDS:
            raise RuntimeError(f"the server took no requests for {ILL_SECONDS:g} s")

    async def __del__(self) -> None:
        """Stop: gateways send no further requests, so wait for those that run."""
        self._saving.cancel()
        await asyncio.to_thread(self._server.drain, self._settings.drain_seconds)
        await asyncio.to_thread(self._server.stop)
        with contextlib.suppress(Exception):  # the store may have ended before
            await self._save()
        self._folder.cleanup()

    async def _save_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(30.0)
            with contextlib.suppress(ray.exceptions.RayError):
                await self._save()

    async def _save(self) -> None:
        state = self._state_file.read_bytes() if self._state_file.exists() else b""
        if state and state != self._saved:
            await _store().keep.remote(self._state_key, state)
            self._saved = state


def _store() -> Any:
    """The actor that keeps control states, created at the first request."""
    options = {"num_cpus": 0, "max_restarts": -1, "lifetime": "detached", "get_if_exists": True}
    place = {"name": "headstart-control-states", "namespace": "headstart"}
    return ray.remote(ControlStates).options(**place, **options).remote()
