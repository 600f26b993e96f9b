"""The load balancer's ASGI app: its own routes, and everything else answered by a replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from headstart.config import Config, ServerConfig
from headstart.config.logs import start_logging
from headstart.gateway.balancer import health
from headstart.gateway.balancer.fleet import Fleet
from headstart.gateway.balancer.options import BalancerOptions, RoutingOptions
from headstart.gateway.balancer.routing import Routing, by_backends_keys
from headstart.gateway.proxy import Backend, Proxy, in_front
from headstart.gateway.router.child import TENANT_HEADER
from headstart.server import errors, kept_streams
from headstart.server.body import read_object
from headstart.server.errors import ApiError
from headstart.server.guard import Guard, load_keys
from headstart.server.kept_streams import KeptStreams
from headstart.server.listen import run, uvicorn_config
from headstart.server.routing import json_response
from headstart.server.threads import Threads
from headstart.server.websites import is_local
from headstart.types.errors import CapacityError, ConfigError


def create_app(
    config: ServerConfig,
    fleet: Fleet,
    options: RoutingOptions,
    watch: Callable[[], Coroutine[None, None, None]] | None = None,
) -> Starlette:
    """Build the app, with the checks of keys, websites and bodies that every server has.

    Args:
        watch: runs forever in parallel, and adds and removes replicas, which have their own
            key. No client then counts as local, because a proxy may precede the app.

    Raises:
        ConfigError: the API key file cannot be used.
    """
    proxy = Proxy(config.timeout)
    forward = Routing(fleet, proxy, options, TENANT_HEADER.lower() if watch else "")
    threads = Threads("bodies", 1, max_waiting=256)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(health.watch(fleet, proxy, options.health_seconds))]
        if watch is not None:
            tasks.append(asyncio.create_task(watch()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            threads.close()
            proxy.close()

    app = Starlette(
        routes=[
            Route("/health", _health),
            Route("/v1/health", _health),
            Route("/router/{order:path}", _obey, methods=["GET", "POST"]),
            *kept_streams.routes.all(),
        ],
        lifespan=lifespan,
    )
    app.state.fleet, app.state.threads, app.state.streams = fleet, threads, KeptStreams()
    app.state.has_keys = bool(config.api_key or config.api_key_file)
    app.state.trusts_local = watch is None
    app.router.default = forward
    app.router.redirect_slashes = False
    if watch is None:
        app.add_middleware(by_backends_keys)
    app.add_middleware(Guard, config=config, why_not_ready=lambda: None)
    errors.install(app)
    return app


async def _health(http: HttpRequest) -> Response:
    """Say whether there is a backend to answer."""
    if not http.app.state.fleet.available():
        raise CapacityError("no backend is healthy; try again later")
    return json_response({"status": "ok"})


async def _obey(http: HttpRequest) -> Response:
    """List the backends, or drain or resume one: for clients with a key, or on this machine."""
    path, state = http.scope["path"], http.app.state
    client = http.scope.get("client")
    is_here = client is None or is_local(client[0])
    if not state.has_keys and not (state.trusts_local and is_here):
        raise ApiError(403, f"{path} is for this machine; start with --api-key to use it")
    fleet: Fleet = state.fleet
    match http.method, http.path_params["order"]:
        case "GET", "backends":
            return json_response({"backends": [one.describe() for one in fleet.replicas.values()]})
        case "POST", "drain" | "resume" as order:
            name = read_object(await http.body()).get("backend")
            if name is None:
                raise ApiError(400, 'the body must be {"backend": NAME}')
            for replica in fleet.replicas.values():
                if name in (replica.name, replica.backend.url):
                    replica.is_draining = order == "drain"
                    return json_response(replica.describe())
            known = ", ".join(fleet.replicas)
            raise ApiError(404, f"there is no backend {errors.shorten(name)}, only {known}")
    raise ApiError(404, f"there is no {http.method} {path} here")


def serve(options: BalancerOptions, config: Config) -> None:
    """Serve until stopped; answers in flight then have `--drain-seconds` to end.

    Raises:
        ConfigError: there is no backend, or the port cannot be taken.
    """
    start_logging(config.log)
    keys = load_keys(config.server)
    key = options.backend_api_key or (keys[0].decode() if keys else None)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    fleet = Fleet()
    for name, url in options.urls().items():
        fleet.add(Backend(name=name, url=url, headers=headers))
    if not fleet.replicas:
        raise ConfigError("there is no backend; name each with --backend http://HOST:PORT")
    server = in_front(config.server)
    settings = uvicorn_config(create_app(server, fleet, options), server)
    settings.timeout_graceful_shutdown = options.drain_seconds
    count = len(fleet.replicas)
    servers = f"{count} server{'s' * (count > 1)}"

    def announce(url: str) -> None:
        print(f"Headstart listens on {url}. It passes requests to {servers}.", flush=True)

    run(uvicorn.Server(settings), server, announce)
