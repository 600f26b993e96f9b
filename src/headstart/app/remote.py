"""One model over several machines: what `--rpc`, `rpc-worker` and `rpc-build` do.

Knows where the plug-in is kept and what a user is told; how libllama does it is in `engine.rpc`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.app.saved_control import cache_directory
from headstart.config import EngineConfig, rpc_endpoints
from headstart.types.errors import ConfigError

if TYPE_CHECKING:
    from headstart.engine.devices import Device

log = logging.getLogger(__name__)

_LONGEST_START = 60.0  # seconds until a worker listens


def plugin_folder() -> Path:
    """Where `headstart rpc-build` puts the plug-in."""
    return cache_directory() / "rpc"


def connect_workers(config: EngineConfig) -> None:
    """Make the devices of `--rpc` known to libllama, in the process that computes.

    Raises:
        RpcWorkerError: a worker does not answer or does not fit.
        ConfigError: this libllama has no RPC backend.
    """
    if config.rpc:
        from headstart.engine import rpc

        rpc.connect(config.rpc, plugin_folder())


def notice_lost_workers(config: EngineConfig) -> None:
    """Let connections to workers break that hear nothing; once the models are loaded."""
    if not config.rpc:
        return
    from headstart.engine import rpc

    ports = {port for _, port in rpc_endpoints(config.rpc)}

    def is_to_worker(sock: socket.socket) -> bool:
        try:
            return sock.getpeername()[1] in ports
        except OSError:
            return False  # it listens, or is closed

    rpc.notice_silence(is_to_worker)


def build_plugin(source: Path) -> Path:
    """Build the RPC backend for the installed libggml; returns its file.

    Raises:
        ConfigError: it cannot be built.
    """
    from headstart.engine import rpc_plugin

    return rpc_plugin.build(source, plugin_folder())


def serve_worker(
    host: str, port: int, device: str | None, threads: int | None, cache: str | None
) -> int:
    """Compute for one engine after the other until the process is ended; returns the exit code.

    Raises:
        ConfigError: no backend, no such device, or the address cannot be listened on.
    """
    from headstart.engine import rpc
    from headstart.engine.machine import default_threads
    from headstart.engine.rpc_handshake import address_of, why_exposed

    rpc.load_backend(plugin_folder())
    devices = _devices_of(device)
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
    if cache:
        os.makedirs(cache, exist_ok=True)
    threading.Thread(target=_notice_lost_engines, args=(rpc.notice_silence,), daemon=True).start()
    names = ", ".join(f"{one.name} ({one.description})" for one in devices)
    log.info("RPC worker on %s:%d: %s; one engine at a time", address, port, names)
    rpc.serve(address, port, devices, threads or default_threads(), cache)
    return 1


def _devices_of(names: str | None) -> list[Device]:
    """Those named; else the graphics processors, else the processor."""
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


def _notice_lost_engines(notice_silence: Callable[[Callable[[socket.socket], bool]], int]) -> None:
    """An engine's machine may go without a word; the worker would wait for it and take no other."""
    end = time.monotonic() + _LONGEST_START
    while not notice_silence(_listens) and time.monotonic() < end:
        time.sleep(0.2)


def _listens(sock: socket.socket) -> bool:
    option = getattr(socket, "SO_ACCEPTCONN", None)
    return option is not None and bool(sock.getsockopt(socket.SOL_SOCKET, option))
