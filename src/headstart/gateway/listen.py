"""Runs a gateway's server on the configured addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import uvicorn

from headstart.config import ServerConfig
from headstart.server.listen import address_of, sigterm_is_no_failure, take_ports


def run(
    server: uvicorn.Server, config: ServerConfig, announce: Callable[[Sequence[str]], None]
) -> None:
    """Serve until stopped; `announce` is called with the URLs once the ports are taken.

    Raises:
        ConfigError: a port cannot be taken.
    """
    with ExitStack() as stack:
        listeners = take_ports(config, stack)
        stack.enter_context(sigterm_is_no_failure(server))
        scheme = "https" if config.ssl_cert_file else "http"
        announce([address_of(one, scheme) + config.api_prefix for one in listeners])
        server.run(sockets=listeners)
