"""Runs the load balancer until it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import uvicorn

from headstart.config import Config
from headstart.gateway.balancer.app import create_app
from headstart.gateway.balancer.balancer import Fleet
from headstart.gateway.balancer.options import BalancerOptions
from headstart.gateway.balancer.replica import Replica
from headstart.server.guard import load_keys
from headstart.server.listen import run, uvicorn_config
from headstart.types.errors import ConfigError


def serve(options: BalancerOptions, config: Config, announce: Callable[[str], None]) -> None:
    """Serve until stopped; answers in flight then have `--drain-seconds` to end.

    Raises:
        ConfigError: there is no backend, or the port cannot be taken.
    """
    keys = load_keys(config.server)
    key = options.backend_api_key or (keys[0].decode() if keys else None)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    fleet = Fleet()
    for url in options.urls():
        fleet.add(Replica(_name(url), url, headers))
    if not fleet.replicas:
        raise ConfigError("there is no backend; name each with --backend http://HOST:PORT")
    settings = uvicorn_config(create_app(config.server, fleet, options), config.server)
    settings.timeout_graceful_shutdown = options.drain_seconds
    run(uvicorn.Server(settings), config.server, lambda urls: announce(urls[0]))


def _name(url: str) -> str:
    """A URL without scheme and password."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path
