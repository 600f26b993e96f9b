"""Runs a router until it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import uvicorn

from headstart.config import Config
from headstart.gateway.balancer.app import create_app
from headstart.gateway.balancer.balancer import Fleet
from headstart.gateway.balancer.options import RouterOptions
from headstart.gateway.balancer.replica import Replica
from headstart.gateway.balancer.routing import RoutingLimits
from headstart.server.guard import load_keys
from headstart.server.listen import address_of, sigterm_is_no_failure, take_ports, uvicorn_config
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)


def serve(options: RouterOptions, config: Config, announce: Callable[[str], None]) -> None:
    """Serve until stopped; answers in flight then have `--drain-seconds` to end.

    Raises:
        ConfigError: there is no backend, or the port cannot be taken.
    """
    keys = load_keys(config.server)
    fleet = Fleet()
    for replica in replicas_of(options, keys[0].decode() if keys else None):
        fleet.add(replica)
    if not fleet.replicas:
        raise ConfigError("there is no backend; name each with --backend http://HOST:PORT")
    limits = RoutingLimits(retries=options.retries, max_waiting=options.max_waiting)
    app = create_app(config.server, fleet, limits, options.health_seconds)
    uvicorn_settings = uvicorn_config(app, config.server)
    uvicorn_settings.timeout_graceful_shutdown = options.drain_seconds
    server = uvicorn.Server(uvicorn_settings)
    with ExitStack() as stack:
        listeners = take_ports(config.server, stack)
        stack.enter_context(sigterm_is_no_failure(server))
        scheme = "https" if config.server.ssl_cert_file else "http"
        announce(address_of(listeners[0], scheme))
        server.run(sockets=listeners)


def replicas_of(options: RouterOptions, key: str | None) -> list[Replica]:
    """The backends as replicas; `key` is what the router sends if it has no other."""
    key = options.backend_api_key or key
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return [Replica(_name(url), url, headers) for url in options.urls()]


def _name(url: str) -> str:
    """A URL without scheme and password."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path
