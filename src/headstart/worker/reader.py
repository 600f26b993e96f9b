"""Reads what the engine process sends, in the asyncio loop.

Without a thread in between: to wake one, and the loop after it, took a quarter of the web process's
time per token.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

_HEAD_BYTES = 8  # in front of each item: its size
_MOST_BYTES = 1 << 16  # of one read


def write_item(fd: int, item: object) -> None:
    """Send an item to an `ItemReader`; waits where that does not read.

    Raises:
        BrokenPipeError, ConnectionResetError: nobody reads any more.
    """
    data = pickle.dumps(item, protocol=5)
    left = memoryview(len(data).to_bytes(_HEAD_BYTES, "little") + data)
    while left:
        left = left[os.write(fd, left) :]


class ItemReader:
    """Takes the items out of a pipe. Belongs to the loop in which `start` was called."""

    def __init__(self, fd: int, take: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        """`on_end` is called once, when the other side is closed."""
        self._fd = fd
        self._take = take
        self._on_end = on_end
        self._unread = bytearray()

    def start(self) -> None:
        """Call `take` with every item from now on; the descriptor does not block any more."""
        os.set_blocking(self._fd, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    def stop(self) -> None:
        """Read no more, and forget whom to tell: he holds this, and would wait for the collector
        of cycles with his descriptors open.
        """
        self._loop.remove_reader(self._fd)
        self._take = _ignore
        self._on_end = lambda: None

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            on_end = self._on_end
            self.stop()
            on_end()
            return
        self._unread += data
        while (item := self._next()) is not None:
            try:
                self._take(pickle.loads(item))
            except Exception:  # those behind it came with it: nothing else would have them taken
                log.exception("what the engine sent could not be taken")

    def _next(self) -> bytes | None:
        """The oldest item, if all of it has come."""
        end = _HEAD_BYTES + int.from_bytes(self._unread[:_HEAD_BYTES], "little")
        if len(self._unread) < max(end, _HEAD_BYTES + 1):
            return None
        item = bytes(self._unread[_HEAD_BYTES:end])
        del self._unread[:end]
        return item


def _ignore(item: object) -> None:
    """Take what comes after `stop`."""
