"""Optional routes of `extras`, enabled by flags or the environment; imported only then."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pkgutil import resolve_name
from typing import ClassVar

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from headstart.config import ServerConfig, ToolsConfig
from headstart.server.errors import ApiError
from headstart.server.routing import Endpoint, Routes

log = logging.getLogger(__name__)

OFF = {  # answers of a path while its extra is off
    "/tools": "this server runs no tools; start it with --tools or --mcp-servers-config",
    "/cors-proxy": "this server passes no requests on; start it with --ui-mcp-proxy",
}


class Extra:
    """Optional routes."""

    served: ClassVar[Routes] = Routes()
    risks: tuple[str, ...] = ()  # routes that must not be reachable by strangers

    def __init__(self, tools: ToolsConfig, environment: Mapping[str, str]) -> None:
        """Raise a ConfigError if the settings cannot work."""

    def applied(self, config: ServerConfig) -> ServerConfig:
        """The server's settings as required by this extra."""
        return config

    def install(self, app: Starlette) -> None:
        """Add routes and middleware, after all other middleware.

        Raises:
            ConfigError: a route is taken.
        """
        app.router.routes.extend(self.served.all())

    async def start(self) -> None:
        """Called when the app starts."""

    async def close(self) -> None:
        """Called when the app ends, perhaps several times."""


def load_extras(tools: ToolsConfig, environment: Mapping[str, str]) -> list[Extra]:
    """The extras enabled by flags and the environment.

    Raises:
        ConfigError: an extra's settings cannot work.
    """
    wanted = {
        "tools.routes:HostedTools": (
            tools.tools or tools.mcp_servers_config or tools.mcp_servers_json
        ),
        "cors_proxy:CorsProxy": tools.ui_mcp_proxy,
        "vertex:Vertex": environment.get("AIP_MODE") == "PREDICTION",
    }
    names = [f"headstart.extras.{name}" for name, is_on in wanted.items() if is_on]
    return [resolve_name(name)(tools, environment) for name in names]


def applied(extras: Sequence[Extra], config: ServerConfig) -> ServerConfig:
    """The server's settings as required by the extras."""
    for extra in extras:
        config = extra.applied(config)
    return config


def endpoints_of(extras: Sequence[Extra]) -> list[Endpoint]:
    """Their endpoints, which the API pages list besides the server's own."""
    return [endpoint for extra in extras for endpoint in extra.served.endpoints]


def install(extras: Sequence[Extra], app: Starlette) -> None:
    """Add the routes; call it after all other middleware is added.

    Raises:
        ConfigError: a route is taken.
    """
    for extra in extras:
        extra.install(app)
    taken = {path for endpoint in endpoints_of(extras) for path in endpoint.paths}
    app.router.routes.extend(
        Route(path, _refuse, methods=["GET", "POST"]) for path in OFF if path not in taken
    )


@asynccontextmanager
async def running(extras: Sequence[Extra], server: ServerConfig) -> AsyncIterator[None]:
    """Run them inside the context; warn about routes that strangers must not reach."""
    _warn(extras, server)
    for extra in extras:
        await extra.start()
    try:
        yield
    finally:
        await close(extras)


async def close(extras: Sequence[Extra]) -> None:
    """Stop everything; may be called twice."""
    for extra in extras:
        await extra.close()


def _warn(extras: Sequence[Extra], server: ServerConfig) -> None:
    risks = [risk for extra in extras for risk in extra.risks]
    if not risks:
        return
    here = ("127.0.0.1", "::1", "localhost")
    hosts = [host.strip() for host in server.host.split(",")]
    is_here = all(host in here or host.endswith(".sock") for host in hosts)
    has_key = bool(server.api_key or server.api_key_file)
    log.warning(
        "security: %s on. Every user of this server acts on this machine as its user%s",
        ", ".join(risks) + (" are" if len(risks) > 1 else " is"),
        "; it listens beyond this machine WITHOUT an API key: set --api-key, or --host 127.0.0.1"
        if not (is_here or has_key)
        else "",
    )


async def _refuse(http: HttpRequest) -> Response:
    raise ApiError(403, OFF[http.url.path], type="feature_disabled")
