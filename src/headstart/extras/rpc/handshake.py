"""The handshake of llama.cpp's RPC protocol, to check that a worker answers before libllama
connects: libllama ends the process if it does not.

    request:   command (1 byte), size (8 bytes), data
    response:  size (8 bytes), data

All numbers are little endian. A connection begins with HELLO, which tells the worker's version.
Source: ggml/src/ggml-rpc/ggml-rpc.cpp of llama.cpp.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time

from headstart.config import rpc_endpoints
from headstart.types.errors import RpcWorkerError

VERSION = (7, 0, 0)  # of the libggml that the pinned llama-cpp-python brings

_SAME_VERSION = "install the same llama-cpp-python on both machines"


def shake_hands(endpoint: str, seconds: float = 5.0) -> str:
    """Ask a worker for its version and its devices; returns a line about it for the log.

    Args:
        endpoint: HOST:PORT.
        seconds: time limit of the whole handshake.

    Raises:
        RpcWorkerError: it cannot be used; the message says why and what to do.
    """
    ((host, port),) = rpc_endpoints(endpoint)
    try:
        connection = socket.create_connection((address_of(host), port), seconds)
    except OSError as error:
        raise RpcWorkerError(
            f"RPC worker {endpoint} cannot be reached: {error.strerror or error}; start "
            f"`headstart rpc-worker --host ADDRESS --port {port}` there, or let its port through "
            "the firewall"
        ) from error
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        talk = _Talk(connection, endpoint, time.monotonic() + seconds)
        started = time.monotonic()
        hello, device_count, device_memory = 14, 15, 11  # commands
        capabilities = bytes(24)  # none: plain TCP
        answer = talk.ask(hello, capabilities, 4 + len(capabilities))
        round_trip_ms = 1000.0 * (time.monotonic() - started)
        if (version := tuple(answer[:3])) != VERSION:
            raise RpcWorkerError(
                f"RPC worker {endpoint} speaks version {_dotted(version)} of the protocol and "
                f"this server {_dotted(VERSION)}; {_SAME_VERSION}"
            )
        (count,) = struct.unpack("<I", talk.ask(device_count, b"", 4))
        if not count:
            raise RpcWorkerError(f"RPC worker {endpoint} has no device; start it with --device")
        free = [
            struct.unpack("<QQ", talk.ask(device_memory, struct.pack("<I", device), 16))[0]
            for device in range(min(count, 64))
        ]
    sizes = ", ".join(f"{size / 2**30:.1f} GiB free" for size in free)
    return (
        f"RPC worker {endpoint}: {len(free)} devices ({sizes}), round trip {round_trip_ms:.1f} ms"
    )


def address_of(host: str) -> str:
    """The IPv4 address of a host; the RPC backend knows no other kind.

    Raises:
        OSError: there is none.
    """
    found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    return str(found[0][4][0])


def why_exposed(host: str) -> str | None:
    """The reason not to serve the protocol here; None on loopback and in private networks."""
    try:
        address = ipaddress.ip_address(address_of(host))
    except OSError:
        return None  # the handshake says more
    if address.is_loopback or (address.is_private and not address.is_unspecified):
        return None
    kind = "stands for all addresses" if address.is_unspecified else "is a public address"
    return (
        f"{host} {kind}, and llama.cpp's RPC protocol has neither authentication nor encryption: "
        "who reaches the port can read and write the worker's memory, and who sees the traffic "
        "can read prompts and answers; use a private network, a tunnel or a firewall"
    )


class _Talk:
    """Requests and responses on one connection, until a deadline."""

    def __init__(self, connection: socket.socket, endpoint: str, deadline: float) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._deadline = deadline

    def ask(self, command: int, data: bytes, size: int) -> bytes:
        """The answer, which has `size` bytes."""
        try:
            self._connection.settimeout(self._left())
            self._connection.sendall(struct.pack("<BQ", command, len(data)) + data)
            (told,) = struct.unpack("<Q", self._read(8))
            if told != size:
                raise RpcWorkerError(
                    f"{self._endpoint} does not speak llama.cpp's RPC protocol, or another version "
                    f"of it: an answer has {told} bytes instead of {size}; --rpc takes the "
                    f"addresses of `headstart rpc-worker`, and {_SAME_VERSION}"
                )
            return self._read(size)
        except TimeoutError:
            raise RpcWorkerError(
                f"RPC worker {self._endpoint} takes connections but does not answer; it serves one "
                "engine at a time: stop the other one, or start a worker on another port for this"
            ) from None
        except OSError as error:
            raise RpcWorkerError(
                f"RPC worker {self._endpoint} broke off: {error.strerror or error}; see its log"
            ) from error

    def _read(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            self._connection.settimeout(self._left())
            if not (part := self._connection.recv(size - len(received))):
                raise RpcWorkerError(
                    f"{self._endpoint} closed the connection without an answer; is it llama.cpp's "
                    f"RPC protocol, of the same version? {_SAME_VERSION}"
                )
            received += part
        return received

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0.0:
            raise TimeoutError
        return left


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
