"""The pipes between the web process and the engine process.

A pipe to the engine holds little, and its reader is busy during a step, or hangs forever. So the
rest is queued and written as the reader takes it; if a tenant's share of the queue is full, its
next request is refused. The web process reads and writes in the asyncio loop, without a thread:
waking one, and then the loop, took a quarter of its time per token.
"""

from __future__ import annotations

import asyncio
import copyreg
import logging
import os
import pickle
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from headstart.structures.prefix import packed
from headstart.structures.tenants import may_take, tenant_of
from headstart.types.errors import CapacityError
from headstart.types.report import WorkerInfo, WorkerReport
from headstart.types.request import (
    EmbeddingRequest,
    Event,
    Request,
    TokenEvent,
    Work,
)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Command: stop a request."""

    request_id: str


Command = Work | Cancel | None
"""None: end the loop."""

Said = list[Event] | WorkerReport | WorkerInfo | float | BaseException
"""What an engine sends: events in order, a report, that it is ready, the loaded share of its
models, and why it fails.
"""


# a code of the private range: else the class is imported by its names for each token
copyreg.add_extension(TokenEvent.__module__, TokenEvent.__qualname__, 240)

log = logging.getLogger(__name__)

COMMAND_SECONDS = 0.0025  # of a step, to read commands and to obey them, a few at a time
MAX_REQUESTS = 512  # of one tenant, not taken by the engine yet; fewer long ones
LEAST_TOKENS = 8192  # minimum size that a request counts as
_COUNTED = (Request, EmbeddingRequest)


class Sender:
    """A bounded queue that is written to a pipe. Belongs to the asyncio loop that it is made in."""

    def __init__(self, pipe: Connection) -> None:
        """`pipe`: made non-blocking, and closed by `close`."""
        self._pipe, self._loop = pipe, asyncio.get_running_loop()
        os.set_blocking(pipe.fileno(), False)
        self._commands: OrderedDict[str | int, Command] = OrderedDict()  # work by its request_id
        self._held = Counter[str]()  # tokens of the queued work, by tenant
        self._unwritten: memoryview | bytes = b""  # of the command that was begun

    def send(self, command: Command) -> None:
        """Queue a command; dropped silently if the process is dead.

        Raises:
            CapacityError: the engine takes nothing and the queue is full.
        """
        if isinstance(command, Cancel) and self._forget(command.request_id):
            return
        if isinstance(command, _COUNTED) and not self._has_room(command):
            raise CapacityError(
                f"{len(self._commands)} requests wait for the engine, which is in a long step; "
                "try again later"
            )
        if command is None or isinstance(command, Cancel):  # long requests take a step
            self._commands[id(command)] = command
            self._commands.move_to_end(id(command), last=False)
        else:
            is_known = command.request_id in self._commands
            self._commands[id(command) if is_known else command.request_id] = command
        self._count(command, 1)
        self._write()

    def close(self) -> None:
        """Close the pipe; queued commands are not sent."""
        self._loop.remove_writer(self._pipe.fileno())
        self._pipe.close()

    def _has_room(self, work: Request | EmbeddingRequest) -> bool:
        tenant, size = _held_by(work)
        return may_take(self._held, tenant, 2 * MAX_REQUESTS * LEAST_TOKENS, size)

    def _forget(self, request_id: str) -> bool:
        """Remove a request that was not sent yet."""
        command = self._commands.pop(request_id, None)
        if command is not None:
            self._count(command, -1)
        return command is not None

    def _count(self, command: Command, sign: int) -> None:
        if isinstance(command, _COUNTED):
            tenant, size = _held_by(command)
            self._held += Counter({tenant: sign * size})  # drops a tenant without any

    def _write(self) -> None:
        """Write what the pipe takes, now and whenever it takes more."""
        fd = self._pipe.fileno()
        try:
            while self._unwritten or self._commands:
                if not self._unwritten:
                    _, command = self._commands.popitem(last=False)
                    self._count(command, -1)
                    self._unwritten = _framed(_compact(command))
                # an empty view would keep the whole command in memory
                self._unwritten = self._unwritten[os.write(fd, self._unwritten) :] or b""
        except BlockingIOError:
            self._loop.add_writer(fd, self._write)
            return
        except OSError:
            log.debug("the engine process is gone; its commands were dropped")
            self._commands.clear()
            self._held.clear()
            self._unwritten = b""
        self._loop.remove_writer(fd)


def _held_by(request: Request | EmbeddingRequest) -> tuple[str, int]:
    """The request's tenant, and its size in tokens; at most what one tenant may hold."""
    size = len(request.prompt) if isinstance(request, Request) else request.num_tokens
    return tenant_of(request.namespace), min(max(LEAST_TOKENS, size), MAX_REQUESTS * LEAST_TOKENS)


def _compact(command: Command) -> Command:
    """Pack tokens as bytes: unpickling a list of 128k takes the engine's loop 5 ms."""
    if isinstance(command, Request):
        return replace(command, prompt=packed(command.prompt))
    if isinstance(command, EmbeddingRequest):
        return replace(command, texts=tuple(map(packed, command.texts)))
    return command


_HEAD_BYTES = 8  # size of an item, in front of it


def write_item(fd: int, item: object) -> None:
    """Send an item; blocks until the other side reads.

    Raises:
        BrokenPipeError, ConnectionResetError: the reader is gone.
    """
    left = _framed(item)
    while left:
        left = left[os.write(fd, left) :]


def _framed(item: object) -> memoryview:
    data = pickle.dumps(item, protocol=5)
    return memoryview(len(data).to_bytes(_HEAD_BYTES, "little") + data)


def item_reader(fd: int) -> Callable[[], list[bytes]]:
    """A function that reads what is available in a pipe, up to 64 KiB, without blocking.

    It returns the items that are whole now, pickled, or raises EOFError if the other side is
    closed.
    """
    os.set_blocking(fd, False)
    unread = bytearray()

    def read() -> list[bytes]:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            raise EOFError
        unread.extend(data)
        items = list[bytes]()
        while len(unread) > _HEAD_BYTES:
            end = _HEAD_BYTES + int.from_bytes(unread[:_HEAD_BYTES], "little")
            if len(unread) < end:
                break
            items.append(bytes(memoryview(unread)[_HEAD_BYTES:end]))
            del unread[:end]
        return items

    return read


def read_items(fd: int, take: Callable[[Any], None], on_end: Callable[[], None]) -> None:
    """Call `take` with each item of a pipe from now on, in this asyncio loop, and `on_end` once,
    when the other side is closed; makes the descriptor non-blocking.
    """
    read, loop = item_reader(fd), asyncio.get_running_loop()

    def on_readable() -> None:
        try:
            items = read()
        except EOFError:
            loop.remove_reader(fd)
            on_end()
            return
        for item in items:
            try:
                take(pickle.loads(item))
            except Exception:  # the items behind it are already read: no event would trigger them
                log.exception("a message of the engine could not be processed")

    loop.add_reader(fd, on_readable)
