"""Runs the app on its ports until a signal, or until loading the model fails."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from headstart.config import ServerConfig
from headstart.server import extra_routes
from headstart.server.app import create_app
from headstart.server.connections import LimitedProtocol, affordable
from headstart.server.extra_routes import Extra
from headstart.server.guard import load_keys
from headstart.server.service import ServedModel
from headstart.server.status import model_entry
from headstart.structures.system import switch_threads_often
from headstart.types.errors import ConfigError
from headstart.types.worker import Worker

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5  # for running answers after SIGTERM or Ctrl-C


def serve(
    config: ServerConfig,
    worker: Worker,
    load_model: Callable[[], ServedModel],
    announce: Callable[[str, dict[str, Any]], None],
    extras: Sequence[Extra],
) -> None:
    """Serve until stopped; `announce` gets the first address, and the model as /v1/models lists it,
    once requests can be answered.

    Raises:
        ConfigError, ModelError: the port cannot be taken, or model or worker cannot be loaded.
    """
    failures: list[Exception] = []
    addresses: list[str] = []
    num_files = 1 if config.path is None else 2  # a slow reader of --path keeps its file open
    config = affordable(extra_routes.applied(extras, config), num_files)

    def on_loaded(error: Exception | None) -> None:
        if error is None:
            announce(addresses[0], model_entry(service))
        else:
            failures.append(error)
            server.should_exit = True

    app = create_app(config, worker, load_model, on_loaded, extras)

    async def stop() -> None:
        service.listeners.close()
        await extra_routes.close(extras)

    service = app.state.service
    server = StoppableServer(uvicorn_config(app, config), stop, service.close, worker.kill)
    run(server, config, addresses.append)
    if failures:
        raise failures[0]


def run(server: uvicorn.Server, config: ServerConfig, announce: Callable[[str], None]) -> None:
    """Serve until stopped; `announce` is called with the first address once all ports are taken.

    Raises:
        ConfigError: a port cannot be taken, or a file with keys or certificates not be read.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    load_keys(config)
    _read_certificate(config)
    switch_threads_often()  # threads that read bodies and prompts
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if is_main else ()  # no other may set handlers
    with ExitStack() as stack:
        listeners = list[socket.socket]()
        for one in take_ports(config):
            listeners.append(stack.enter_context(one))
            if one.family == socket.AF_UNIX:
                stack.callback(Path(one.getsockname()).unlink, missing_ok=True)
        for number in numbers:  # uvicorn raises them again after its shutdown; it is no failure
            signal.signal(number, stop)
        scheme = "https" if config.ssl_cert_file else "http"
        first, *others = (address_of(one, scheme) + config.api_prefix for one in listeners)
        announce(first)
        for address in others:
            log.info("listening on %s as well", address)
        server.run(sockets=listeners)
    for number in numbers:  # the process ends; Python would restore their default before
        signal.signal(number, signal.SIG_IGN)


def uvicorn_config(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    """uvicorn's settings for the app."""
    protocol: Any = partial(
        LimitedProtocol,
        max_connections=config.max_connections,
        timeout=float(config.timeout),
    )
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[("server", "headstart")],
        timeout_keep_alive=config.timeout,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS + 5,  # to send errors to the rest
        ssl_keyfile=config.ssl_key_file,
        ssl_certfile=config.ssl_cert_file,
    )


class StoppableServer(uvicorn.Server):
    """Ends running answers with an error instead of closing their connections, as uvicorn would.

    Args:
        stop: called first.
        end: ends the answers still running after SHUTDOWN_SECONDS.
        kill: called at a second signal, because `end` would wait for a step.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        stop: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        kill: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._stop, self._end, self._kill = stop, end, kill

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self._kill()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._stop()
        ending = asyncio.create_task(self._end_later())
        await super().shutdown(sockets)
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await ending

    async def _end_later(self) -> None:
        await asyncio.sleep(SHUTDOWN_SECONDS)
        await self._end()


def take_ports(config: ServerConfig) -> Iterator[socket.socket]:
    """Listen on all configured addresses, one after the other; as `take_port`."""
    hosts = [host.strip() for host in config.host.split(",") if host.strip()]
    if not hosts:
        raise ConfigError(f"--host is {config.host!r} but must name an address; 127.0.0.1 is usual")
    for host in hosts:
        yield take_port(replace(config, host=host), only_ipv6=len(hosts) > 1)


def take_port(config: ServerConfig, *, only_ipv6: bool = False) -> socket.socket:
    """Listen on a single address.

    Raises:
        ConfigError: it is in use or does not belong to this machine.
    """
    if config.host.endswith(".sock"):
        return _take_socket_file(Path(config.host))
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it a token takes 40
    # ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if only_ipv6 and family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if config.reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((config.host, config.port))
        listener.listen()  # uvicorn lengthens the queue of connections
        return listener
    except OSError as error:
        listener.close()
        is_taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        other = "--port (0 takes a free one)" if is_taken else "--host"
        raise ConfigError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror or error}; choose "
            f"another {other}"
        ) from error


def _take_socket_file(path: Path) -> socket.socket:
    """Listen on a Unix socket; replaces a stale one."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and listener.connect_ex(str(path)):
            path.unlink()
            listener.close()
            listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        return listener
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {path}: {reason}; choose another --host") from error


def _read_certificate(config: ServerConfig) -> None:
    """Raise ConfigError if the TLS files cannot be used."""
    if config.ssl_cert_file:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(config.ssl_cert_file, config.ssl_key_file)
        except OSError as error:
            raise ConfigError(
                f"--ssl-cert-file {config.ssl_cert_file} and --ssl-key-file {config.ssl_key_file} "
                f"cannot be used: {error.strerror or error}"
            ) from error


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """The URL of a listening socket, or a Unix socket's path."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
