"""One model on several machines: llama.cpp's RPC backend, on both ends.

The backend is in libggml if that was built with it; otherwise it is a plug-in, built separately
against the installed libggml-base (`build`). Losing a worker aborts the process: workers are
checked before libllama connects (`handshake`), and only the engine process connects.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_size_t, c_void_p, cast
from pathlib import Path
from typing import Any

from headstart.config import EngineConfig
from headstart.config.engine import rpc_endpoints
from headstart.engine import library
from headstart.engine.devices import Device
from headstart.engine.library import api
from headstart.extras.rpc.handshake import shake_hands, why_exposed
from headstart.structures.atomic import cache_folder
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)

# A machine that loses power or network is silent: after this many seconds without a sign of life
# the connection counts as broken.
SILENT_SECONDS = 30

_connected: set[str] = set()


def connect(config: EngineConfig) -> None:
    """Make the devices of `--rpc` known to libllama, as RPC0, RPC1 ...; again does nothing.

    Raises:
        RpcWorkerError: a worker does not answer or does not fit.
        ConfigError: this libllama has no RPC backend.
    """
    names = [f"{host}:{port}" for host, port in rpc_endpoints(config.rpc or "")]
    missing = [name for name in names if name not in _connected]
    for name in missing:
        log.info("%s", shake_hands(name))
        if warning := why_exposed(name.rpartition(":")[0]):
            log.warning("%s", warning)
    backend = load_backend() if missing else 0
    for name in missing:
        add = _function(backend, b"ggml_backend_rpc_add_server", c_void_p, c_char_p)
        if not (registered := add(name.encode())):
            raise ConfigError(f"RPC worker {name} has no device; start it with --device")
        api.ggml_backend_register(registered)
        _connected.add(name)


def notice_lost_workers(config: EngineConfig) -> None:
    """Set timeouts for connections to workers; call it once the models are loaded."""
    ports = {port for _, port in rpc_endpoints(config.rpc or "")}

    def is_to_worker(sock: socket.socket) -> bool:
        try:
            return sock.getpeername()[1] in ports
        except OSError:
            return False  # it listens, or is closed

    notice_silence(is_to_worker)


def serve(
    address: str, port: int, devices: Sequence[Device], threads: int, cache: str | None
) -> None:
    """Compute for one engine after another; returns only if it cannot listen.

    Signals end the process, because this thread runs no Python meanwhile.
    """
    start = _function(
        _backend_found(),
        b"ggml_backend_rpc_start_server",
        None,
        c_char_p,
        c_char_p,
        c_size_t,
        c_size_t,
        POINTER(c_void_p),
    )
    handles = (c_void_p * len(devices))(*(device.handle for device in devices))
    endpoint = f"{address}:{port}".encode()
    start(
        endpoint,
        cache.encode() if cache else None,
        threads,
        len(devices),
        cast(handles, POINTER(c_void_p)),
    )


def notice_silence(wants: Callable[[socket.socket], bool]) -> int:
    """Set a timeout of SILENT_SECONDS on this process's TCP sockets.

    Without it a decode would wait forever for a machine that lost power. Accepted connections
    inherit the options of a listening socket. Returns the number of sockets: none but on Linux.
    """
    count = 0
    for name in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
        try:
            sock = socket.socket(fileno=int(name))
        except OSError:  # another kind of file, or closed by now
            continue
        try:
            if sock.family != socket.AF_INET or sock.type != socket.SOCK_STREAM or not wants(sock):
                continue
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SILENT_SECONDS // 10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_SECONDS)
            count += 1
        finally:
            sock.detach()  # it stays open
    return count


def plugin_folder() -> Path:
    """Folder where `headstart rpc-build` installs the plug-in."""
    return cache_folder() / "rpc"


def plugin_file(folder: Path) -> Path:
    """Path of the plug-in for the installed libggml-base, which may not exist yet."""
    base = Path(api.ggml("libggml-base")._name)
    digest = hashlib.sha256(base.read_bytes()).hexdigest()[:16]
    return folder / f"libggml-rpc-{digest}.so"


def load_backend() -> int:
    """The handle of the backend, from the plug-in if libllama has none.

    Raises:
        ConfigError: there is neither.
    """
    if not (found := _backend_found()):
        file = plugin_file(plugin_folder())
        if file.exists():
            api.ggml_backend_load(bytes(file))
        if not (found := _backend_found()):
            raise ConfigError(
                "the installed libllama has no RPC backend; build the plug-in with `headstart "
                'rpc-build`, or install again with CMAKE_ARGS="-DGGML_RPC=on" pip install '
                "--force-reinstall --no-binary llama-cpp-python llama-cpp-python"
            )
    return found


def _backend_found() -> int:
    library.start()
    return api.ggml_backend_reg_by_name(b"RPC") or 0


def _function(backend: int, name: bytes, result: Any, *arguments: Any) -> Any:
    if not (address := api.ggml_backend_reg_get_proc_address(backend, name)):
        raise ConfigError(f"the RPC backend of this libllama has no {name.decode()}")
    return CFUNCTYPE(result, *arguments)(address)
