"""A gateway as Ray Serve runs it: our router, whose replicas are those that Ray has running."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray.serve.handle import DeploymentHandle

from headstart.config import ServerConfig
from headstart.gateway.balancer.app import create_app
from headstart.gateway.balancer.fleet import Fleet
from headstart.gateway.balancer.options import RoutingOptions
from headstart.gateway.proxy import Backend, in_front

log = logging.getLogger(__name__)


class GatewayActor:
    """Answers HTTP requests; `serve.ingress` calls `__serve_build_asgi_app__`."""

    def __init__(
        self, server: ServerConfig, options: RoutingOptions, replicas: DeploymentHandle
    ) -> None:
        self._server, self._options = server, options
        self._handle = replicas
        self._fleet = Fleet()

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(in_front(self._server), self._fleet, self._options, watch=self._watch)

    async def _watch(self) -> None:
        """Follow what Ray starts and stops."""
        known = ""
        while True:
            problem = ""
            try:
                await self._look()
            except Exception as error:  # Ray's are many, and the next look may go well
                problem = str(error)
            if problem and problem != known:
                log.warning("no replica can be asked: %s", problem)
            known = problem
            await asyncio.sleep(0.5)

    async def _look(self) -> None:
        response = self._handle.broadcast("describe")
        found = await response.results_async(timeout_s=10.0)
        replicas = self._fleet.replicas
        for name in replicas.keys() - {one["name"] for one in found}:
            del replicas[name]
        for one in found:
            if one["name"] not in replicas:
                headers = {"authorization": f"Bearer {one['key']}"}
                self._fleet.add(Backend(name=one["name"], url=one["url"], headers=headers))
