"""A gateway as Ray Serve runs it: our router, whose replicas are those that Ray has running."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from ray.serve.handle import DeploymentHandle

from headstart.config import ServerConfig
from headstart.extras.cluster.replica import ReplicaSettings
from headstart.gateway.balancer.app import create_app
from headstart.gateway.balancer.balancer import Fleet
from headstart.gateway.balancer.replica import Replica
from headstart.gateway.balancer.routing import RoutingLimits
from headstart.gateway.router.child import TENANT_HEADER

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What every gateway gets."""

    server: ServerConfig
    replicas: ReplicaSettings
    limits: RoutingLimits
    health_seconds: float = 1.0


class GatewayActor:
    """Answers HTTP requests; `serve.ingress` calls `__serve_build_asgi_app__`."""

    def __init__(self, settings: GatewaySettings, replicas: DeploymentHandle) -> None:
        self._settings = settings
        self._handle = replicas
        self._fleet = Fleet()

    def __serve_build_asgi_app__(self) -> Any:
        settings = self._settings
        return create_app(
            settings.server,
            self._fleet,
            settings.limits,
            settings.health_seconds,
            watch=self._watch,
        )

    async def _watch(self) -> None:
        """Follow what Ray starts and stops."""
        known = ""
        while True:
            try:
                await self._look()
                problem = ""
            except Exception as error:  # Ray's are many, and the next look may go well
                problem = str(error)
            if problem and problem != known:
                log.warning("no replica can be asked: %s", problem)
            known = problem
            await asyncio.sleep(0.5)

    async def _look(self) -> None:
        response = self._handle.broadcast("describe")
        found = await response.results_async(timeout_s=10.0)
        running = {one["name"]: one["url"] for one in found}
        for name in self._fleet.replicas.keys() - running.keys():
            del self._fleet.replicas[name]
        headers = {"authorization": f"Bearer {self._settings.replicas.key}"}
        for name, url in running.items():
            if name not in self._fleet.replicas:
                self._fleet.add(Replica(name, url, headers))


def routing_limits(retries: int, max_waiting: int) -> RoutingLimits:
    """Clients' keys end at the gateway: the replicas have one of their own."""
    return RoutingLimits(
        retries=retries,
        max_waiting=max_waiting,
        passes_keys=False,
        tenant_header=TENANT_HEADER.lower(),
    )
