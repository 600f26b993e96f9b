"""The router as an ASGI app: what it answers itself, and everything else from a replica."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.config import ServerConfig
from headstart.gateway.balancer.balancer import Fleet
from headstart.gateway.balancer.health import POLL_SECONDS, Health
from headstart.gateway.balancer.routing import Routing, RoutingLimits
from headstart.gateway.router.proxy import Proxy, read_body
from headstart.server.errors import ApiError, error_response, log_failure
from headstart.server.guard import Guard
from headstart.server.threads import ClientGoneError
from headstart.types.errors import HeadstartError

OWN_PATHS = "/router/"
Watch = Callable[[], Coroutine[None, None, None]]


def create_app(
    config: ServerConfig,
    fleet: Fleet,
    limits: RoutingLimits | None = None,
    poll_seconds: float = POLL_SECONDS,
    watch: Watch | None = None,
) -> ASGIApp:
    """The app behind the guard that every server has: keys, websites, size of bodies.

    Args:
        watch: runs beside it for ever and adds and removes replicas. Then nobody is on "this
            machine": a proxy may stand before the app.

    Raises:
        ConfigError: the API key file cannot be used.
    """
    inner = RouterApp(fleet, limits or RoutingLimits(), poll_seconds, watch)
    inner.has_keys = bool(config.api_key or config.api_key_file)
    return _Lifespan(Guard(inner, config=config, why_not_ready=lambda: None), inner.running)


class RouterApp:
    """Answers HTTP requests; `running` must be entered first."""

    has_keys = False

    def __init__(
        self, fleet: Fleet, limits: RoutingLimits, poll_seconds: float, watch: Watch | None
    ) -> None:
        self.fleet = fleet
        self._limits = limits
        self._poll_seconds = poll_seconds
        self._watch = watch
        self._routing: Routing | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Poll the replicas, and keep connections to them."""
        proxy = Proxy()
        health = Health(self.fleet, proxy, self._poll_seconds)
        self._routing = Routing(self.fleet, proxy, self._limits, health.answered)
        tasks = [asyncio.create_task(health.run())]
        if self._watch is not None:
            tasks.append(asyncio.create_task(self._watch()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await proxy.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        has_begun = False

        async def noting(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._answer(scope, receive, noting)
        except ClientGoneError:
            return
        except (ApiError, HeadstartError) as error:
            log_failure(error)
            if has_begun:
                raise  # the connection is cut: the client must not take it for the end
            await error_response(error)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._routing is not None
        path, method = scope["path"], scope["method"]
        if path in ("/health", "/v1/health"):
            response = self._health()
        elif path.startswith(OWN_PATHS):
            response = await self._own(method, path, scope, receive)
        else:
            await self._routing.handle(scope, receive, send)
            return
        await response(scope, receive, send)

    def _health(self) -> Response:
        if not self.fleet.available():
            raise ApiError(503, "no backend is healthy")
        return _json({"status": "ok"})

    async def _own(self, method: str, path: str, scope: Scope, receive: Receive) -> Response:
        """What concerns the router itself: for those with a key, or on this machine."""
        if not self.has_keys and (self._watch is not None or not _is_local(scope)):
            raise ApiError(403, f"{path} is for this machine; start with --api-key to use it")
        if (method, path) == ("GET", "/router/backends"):
            return _json(self.fleet.describe())
        actions = {"/router/drain": True, "/router/resume": False}
        if method == "POST" and path in actions:
            replica = self._named(await read_body(receive))
            replica.is_draining = actions[path]
            return _json(replica.describe())
        raise ApiError(404, f"there is no {method} {path} here")

    def _named(self, body: bytes) -> Any:
        try:
            name = orjson.loads(body)["backend"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise ApiError(400, 'the body must be {"backend": NAME}') from None
        for replica in self.fleet.replicas.values():
            if name in (replica.name, replica.url):
                return replica
        known = ", ".join(self.fleet.replicas)
        raise ApiError(404, f"there is no backend {name!r}, only {known}")


class _Lifespan:
    """Runs something while the app runs, as uvicorn and Ray Serve tell it."""

    def __init__(
        self, app: ASGIApp, running: Callable[[], contextlib.AbstractAsyncContextManager[None]]
    ) -> None:
        self._app = app
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        await receive()
        async with self._running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


def _is_local(scope: Scope) -> bool:
    client = scope.get("client")
    try:
        return client is None or ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def _json(data: object) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
