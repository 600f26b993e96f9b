"""A gateway as Ray Serve runs it: our router, whose replicas are those that Ray has running."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray.serve.handle import DeploymentHandle

from headstart.config import ServerConfig
from headstart.gateway.balancer.app import create_app
from headstart.gateway.balancer.balancer import Fleet
from headstart.gateway.balancer.options import RoutingOptions
from headstart.gateway.balancer.replica import Replica

log = logging.getLogger(__name__)


class GatewayActor:
    """Answers HTTP requests; `serve.ingress` calls `__serve_build_asgi_app__`."""

    def __init__(
        self, server: ServerConfig, options: RoutingOptions, key: str, replicas: DeploymentHandle
    ) -> None:
        """`key` is what replicas are asked with."""
        self._server, self._options = server, options
        self._headers = {"authorization": f"Bearer {key}"}
        self._handle = replicas
        self._fleet = Fleet()

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(self._server, self._fleet, self._options, watch=self._watch)

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
        for name, url in running.items():
            if name not in self._fleet.replicas:
                self._fleet.replicas[name] = Replica(name, url, self._headers)
