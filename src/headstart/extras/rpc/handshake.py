"""The handshake of llama.cpp's RPC protocol, to check that a worker answers before libllama
connects: libllama ends the process if it does not.

    request:   command (1 byte), size (8 bytes), data
    response:  size (8 bytes), data

All numbers are little endian. A connection begins with HELLO, which returns the worker's version.
Source: ggml/src/ggml-rpc/ggml-rpc.cpp of llama.cpp.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from functools import partial

from headstart.config.engine import rpc_endpoints
from headstart.types.errors import RpcWorkerError

VERSION = (7, 0, 0)  # of the libggml that the pinned llama-cpp-python brings

_SAME_VERSION = "install the same llama-cpp-python on both machines"


def shake_hands(endpoint: str, seconds: float = 5.0) -> str:
    """Ask a worker for its version and its devices; returns a line about it for the log.

    Args:
        endpoint: HOST:PORT.
        seconds: time limit of the whole handshake.

    Raises:
        RpcWorkerError: it cannot be used, with reason and remedy.
    """
    ((host, port),) = rpc_endpoints(endpoint)
    deadline = time.monotonic() + seconds
    try:
        connection = socket.create_connection((address_of(host), port), seconds)
    except OSError as error:
        raise RpcWorkerError(
            f"RPC worker {endpoint} cannot be reached: {error.strerror or error}; start "
            f"`headstart rpc-worker --host ADDRESS --port {port}` there, or let its port through "
            "the firewall"
        ) from error
    ask = partial(_ask, connection, endpoint, deadline)
    with connection:
        started = time.monotonic()
        hello, device_count, device_memory = 14, 15, 11  # commands
        capabilities = bytes(24)  # none: plain TCP
        answer = ask(hello, capabilities, 4 + len(capabilities))
        round_trip_ms = 1000.0 * (time.monotonic() - started)
        if (version := tuple(answer[:3])) != VERSION:
            raise RpcWorkerError(
                f"RPC worker {endpoint} speaks version {_dotted(version)} of the protocol and "
                f"this server {_dotted(VERSION)}; {_SAME_VERSION}"
            )
        (count,) = struct.unpack("<I", ask(device_count, b"", 4))
        if not count:
            raise RpcWorkerError(f"RPC worker {endpoint} has no device; start it with --device")
        free = [
            struct.unpack("<QQ", ask(device_memory, struct.pack("<I", device), 16))[0]
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
        return None  # the handshake's error is more precise
    if address.is_loopback or (address.is_private and not address.is_unspecified):
        return None
    kind = "stands for all addresses" if address.is_unspecified else "is a public address"
    return (
        f"{host} {kind}, and llama.cpp's RPC protocol has neither authentication nor encryption: "
        "who reaches the port can read and write the worker's memory, and who sees the traffic "
        "can read prompts and answers; use a private network, a tunnel or a firewall"
    )


def _ask(
    connection: socket.socket, endpoint: str, deadline: float, command: int, data: bytes, size: int
) -> bytes:
    """The answer, which has `size` bytes."""
    try:
        connection.sendall(struct.pack("<BQ", command, len(data)) + data)
        head = _read(connection, deadline, 8)
        if len(head) == 8 and (told := int.from_bytes(head, "little")) != size:
            raise RpcWorkerError(
                f"{endpoint} does not speak llama.cpp's RPC protocol, or another version of it: an "
                f"answer has {told} bytes instead of {size}; --rpc takes the addresses of "
                f"`headstart rpc-worker`, and {_SAME_VERSION}"
            )
        answer = _read(connection, deadline, size)
    except TimeoutError:
        raise RpcWorkerError(
            f"RPC worker {endpoint} takes connections but does not answer; it serves one engine at "
            "a time: stop the other one, or start a worker on another port for this"
        ) from None
    except OSError as error:
        raise RpcWorkerError(
            f"RPC worker {endpoint} broke off: {error.strerror or error}; see its log"
        ) from error
    if len(answer) < size:
        raise RpcWorkerError(
            f"{endpoint} closed the connection without an answer; is it llama.cpp's RPC protocol, "
            f"of the same version? {_SAME_VERSION}"
        )
    return answer


def _read(connection: socket.socket, deadline: float, size: int) -> bytes:
    """So many bytes, fewer if the connection ends; after the deadline each has 1 ms."""
    received = b""
    while missing := size - len(received):
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        if not (part := connection.recv(missing)):
            break
        received += part
    return received


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
