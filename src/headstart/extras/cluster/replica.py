"""A replica as a Ray Serve deployment: starts a server, reports its address and its load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx2
import ray
from ray import serve

from headstart.extras.cluster.child import ServerChild
from headstart.extras.cluster.scaling import RUNNING, WAITING
from headstart.types.errors import ModelError

ILL_SECONDS = 120.0  # that a server may be ill before Ray starts another replica


class ReplicaActor:
    """One server; made and ended by Ray Serve."""

    def __init__(self, arguments: Sequence[str], key: str, drain_seconds: float) -> None:
        """`arguments`: of `headstart serve`; `key`: what the server is asked with."""
        self._drain_seconds = drain_seconds
        self._name = serve.get_replica_context().replica_id.unique_id
        self._healthy_at = time.monotonic()
        self._server = ServerChild(arguments, host=ray.util.get_node_ip_address(), key=key)
        try:
            self._server.wait()
        except ModelError:
            self._server.stop()
            raise

    async def describe(self) -> dict[str, Any]:
        """Name and address of the replica."""
        return {"name": self._name, "url": self._server.url, "pid": self._server.pid}

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
        await asyncio.to_thread(self._server.drain, self._drain_seconds)
        await asyncio.to_thread(self._server.stop)
