"""`headstart rpc-worker`: compute part of a model for a server on another machine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.config import option
from headstart.types.errors import ConfigError

if TYPE_CHECKING:
    from headstart.engine.devices import Device

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcWorkerOptions:
    """The address, and the devices to compute with."""

    host: str = option("127.0.0.1", "address to listen on: one of a private network")
    port: int = option(
        50052, "port; each engine needs its own worker and port", "-p", least=1, most=65535
    )
    device: str | None = option(
        None,
        "devices to compute with, by name and separated by commas (see `headstart devices`); "
        "default: all GPUs, or else the CPU",
    )
    threads: int | None = option(
        None, "CPU threads; default: physical cores", least=1, words={"-1": None}
    )
    tensor_cache: str | None = option(
        None, "folder for weights, so that they are not sent again at the next start", "--cache"
    )


def run(resolved: Resolved) -> int:
    """Compute for one engine after another; returns only if it cannot listen.

    Raises:
        ConfigError: no backend, no such device, or the address cannot be listened on.
    """
    options = resolved.own(RpcWorkerOptions)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python does not run while libllama serves

    from headstart.engine.machine import default_threads
    from headstart.extras.rpc import backend
    from headstart.extras.rpc.handshake import address_of, why_exposed

    host, port = options.host, options.port
    backend.load_backend()
    devices = _devices_of(options.device)
    try:
        address = address_of(host)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except OSError as error:
        raise ConfigError(
            f"the worker cannot listen on {host}:{port}: {error.strerror or error}; choose another "
            "--host or --port"
        ) from error
    if warning := why_exposed(host):
        log.warning("%s", warning)
    if options.tensor_cache:
        os.makedirs(options.tensor_cache, exist_ok=True)
    threading.Thread(target=_notice_lost_engines, daemon=True).start()
    names = ", ".join(f"{one.name} ({one.description})" for one in devices)
    log.info("RPC worker on %s:%d: %s; one engine at a time", address, port, names)
    num_threads = options.threads or default_threads()
    backend.serve(address, port, devices, num_threads, options.tensor_cache)
    return 1


def _devices_of(names: str | None) -> list[Device]:
    """The named devices; else the GPUs, else the CPU."""
    from headstart.engine.devices import list_devices

    known = {one.name: one for one in list_devices()}
    if names is None:
        found = [one for one in known.values() if "GPU" in one.kind]
        return found or [one for one in known.values() if one.kind == "CPU"]
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--device names {name!r}, but this machine has {', '.join(known)}")
    return [known[name] for name in wanted]


def _notice_lost_engines() -> None:
    """Let connections to silent engines break: a worker serves one engine at a time."""
    from headstart.extras.rpc.backend import notice_silence

    end = time.monotonic() + 60.0  # the worker listens by then
    while not notice_silence(_listens) and time.monotonic() < end:
        time.sleep(0.2)


def _listens(sock: socket.socket) -> bool:
    option = getattr(socket, "SO_ACCEPTCONN", None)
    return option is not None and bool(sock.getsockopt(socket.SOL_SOCKET, option))


COMMAND = Command(
    name="rpc-worker",
    about=(
        "Compute part of a model for a server that was started with --rpc HOST:PORT, one server "
        "at a time. The protocol is llama.cpp's: it has neither passwords nor encryption, and "
        "anyone who reaches the port can read and write this process's memory. Use it in a "
        "private network only (docs/rpc.md)."
    ),
    options=RpcWorkerOptions,
    run=run,
)
