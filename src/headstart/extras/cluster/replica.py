"""A replica as a Ray Serve deployment: starts a server, reports its address and its load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import serve

from headstart.extras.cluster.scaling import REQUESTS
from headstart.gateway.balancer.health import requests_of
from headstart.gateway.proxy import Backend, Proxy
from headstart.gateway.router.child import ChildProcess
from headstart.gateway.router.presets import ModelPreset
from headstart.types.errors import BackendError, ModelError


class ReplicaActor:
    """One server; created and stopped by Ray Serve."""

    # Ray awaits it
    async def __init__(  # type: ignore[misc]
        self, arguments: Sequence[str], drain_seconds: float
    ) -> None:
        """`arguments`: of `headstart serve`."""
        self._drain_seconds = drain_seconds
        self._name = serve.get_replica_context().replica_id.unique_id
        self._healthy_at = time.monotonic()
        self._url, self._failure = "", ""
        self._proxy = Proxy(silence_seconds=5)
        self._exit_code: int | None = None
        self._is_ready, self._has_ended = asyncio.Event(), asyncio.Event()
        environment = dict(os.environ)
        preset = ModelPreset(
            name="", source="", arguments=tuple(arguments), environment=environment, stop_seconds=20
        )
        host = f"--host={ray.util.get_node_ip_address()}"
        self._server = ChildProcess(preset, (host,), self._on_state, self._on_exit)
        await self._is_ready.wait()
        if not self._url:
            code = self._exit_code
            raise ModelError(
                self._failure or f"headstart serve ended with exit code {code}; its log says why"
            )

    @property
    def _backend(self) -> Backend:
        headers = {"authorization": f"Bearer {self._server.key}"}
        return Backend(name=self._name, url=self._url, headers=headers)

    def _on_state(self, state: Mapping[str, Any]) -> None:
        self._url, self._failure = state.get("url", self._url), state.get("message", "")
        if self._url:
            self._is_ready.set()

    def _on_exit(self, code: int) -> None:
        self._exit_code = code
        self._is_ready.set()
        self._has_ended.set()

    async def describe(self) -> dict[str, Any]:
        """Name and address of the replica, and the key with which it is asked."""
        return {"name": self._name, "url": self._url, "key": self._server.key}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Ray scales by."""
        return {REQUESTS: float(await self._num_requests() or 0)}

    async def check_health(self) -> None:
        """Raise if another replica must take this one's place."""
        if self._has_ended.is_set():
            raise RuntimeError("the server's process ended")
        now = time.monotonic()
        with contextlib.suppress(BackendError):
            if (await self._proxy.get(self._backend, "/health"))[0] == 200:
                self._healthy_at = now
        if now - self._healthy_at > 120.0:
            raise RuntimeError("the server took no requests for 120 s")

    async def __del__(self) -> None:
        """Stop: gateways send no further requests, so wait for those that run.

        Three looks in a row must show none: reports of a server are up to 0.25 s old.
        """
        deadline, num_idle = time.monotonic() + self._drain_seconds, 0
        has_ended = self._has_ended.is_set
        while self._url and num_idle < 3 and time.monotonic() < deadline and not has_ended():
            num_idle = num_idle + 1 if await self._num_requests() == 0 else 0
            await asyncio.sleep(0.3)
        self._server.stop()
        await self._has_ended.wait()

    async def _num_requests(self) -> int | None:
        """Running and waiting requests; None if it does not answer."""
        with contextlib.suppress(BackendError):
            status, body, _ = await self._proxy.get(self._backend, "/metrics")
            return sum(requests_of(body)) if status == 200 else None
        return None
