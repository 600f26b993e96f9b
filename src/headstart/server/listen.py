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
from contextlib import ExitStack, contextmanager, suppress
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
from headstart.structures.system import is_unix_socket, switch_threads_often, unix_socket
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
    config = extra_routes.applied(extras, config)

    def on_loaded(error: Exception | None) -> None:
        if error is None:
            for address in addresses[1:]:
                log.info("listening on %s as well", address)
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
    run(server, config, addresses.extend)
    if failures:
        raise failures[0]


def run(
    server: uvicorn.Server, config: ServerConfig, announce: Callable[[Sequence[str]], None]
) -> None:
    """Serve until stopped; `announce` is called with the addresses once the ports are taken.

    Raises:
        ConfigError: a port cannot be taken, or a file with keys or certificates not be read.
    """
    load_keys(config)
    _read_certificate(config)
    switch_threads_often()  # threads that read bodies and prompts
    with ExitStack() as stack:
        listeners = take_ports(config, stack)
        stack.enter_context(stopping_is_no_failure(server))
        scheme = "https" if config.ssl_cert_file else "http"
        announce([address_of(one, scheme) + config.api_prefix for one in listeners])
        server.run(sockets=listeners)


def uvicorn_config(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    """uvicorn's settings for the app.

    Raises:
        ConfigError: the limit on open files is too low.
    """
    protocol: Any = partial(
        LimitedProtocol,
        max_connections=affordable(config.max_connections),
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
        self._told = asyncio.Event()
        super().__init__(config)
        self._stop, self._end, self._kill = stop, end, kill

    @property
    def should_exit(self) -> bool:
        return self._told.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._told.set()

    async def main_loop(self) -> None:
        """Wait for `should_exit`; uvicorn looks ten times a second, as much work as five tokens."""
        while not await self.on_tick(0):  # which also updates the date that answers carry
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._told.wait()

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


@contextmanager
def stopping_is_no_failure(server: uvicorn.Server) -> Iterator[None]:
    """End with exit code 0 on SIGTERM and Ctrl-C, which uvicorn raises again after its shutdown."""
    # only the main thread may set signal handlers
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    has_come = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal has_come
        server.should_exit = has_come = True

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            # only if the process is ending, because children inherit an ignored signal
            signal.signal(number, signal.SIG_IGN if has_come else handler)


def take_ports(config: ServerConfig, stack: ExitStack) -> list[socket.socket]:
    """Listen on all configured addresses; `stack` closes them.

    Raises:
        ConfigError: an address is in use or does not belong to this machine.
    """
    hosts = [host.strip() for host in config.host.split(",") if host.strip()]
    listeners = []
    for host in hosts:
        if host.endswith(".sock"):
            listeners.append(stack.enter_context(_take_socket_file(Path(host))))
        else:
            one = replace(config, host=host)
            listeners.append(stack.enter_context(take_port(one, only_ipv6=len(hosts) > 1)))
    return listeners


@contextmanager
def _take_socket_file(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket; replaces a stale one."""
    listener = unix_socket()
    try:
        if path.is_socket() and listener.connect_ex(str(path)):
            path.unlink()
            listener.close()
            listener = unix_socket()
        listener.bind(str(path))
        listener.listen()
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {path}: {reason}; choose another --host") from error
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def take_port(config: ServerConfig, *, only_ipv6: bool = False) -> socket.socket:
    """Listen on the configured address.

    Raises:
        ConfigError: it is in use or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it a token takes 40
    # ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if config.reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if only_ipv6 and family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
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
    if is_unix_socket(listener):
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
