"""Sends commands to the engine process from a thread of its own.

A pipe takes little and its reader is busy for as long as a step lasts, or stopped for ever: whoever
writes to it waits. The event loop never does; where too much waits, the next request is refused.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from multiprocessing.connection import Connection

from headstart.types.errors import CapacityError
from headstart.types.request import EmbeddingRequest, Request
from headstart.worker.messages import Cancel, Command

log = logging.getLogger(__name__)

MAX_REQUESTS = 512  # that the engine did not take yet
MAX_TOKENS = 1 << 22  # of their prompts
_COUNTED = (Request, EmbeddingRequest)


class Sender:
    """A bounded queue before a pipe, and the thread between them."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._commands: deque[Command] = deque()
        self._num_requests = 0
        self._num_tokens = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="headstart-commands", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, command: Command) -> None:
        """Queue a command; lost without notice if the process is dead.

        Raises:
            CapacityError: the engine takes nothing and too many requests wait for it.
        """
        with self._changed:
            if isinstance(command, Cancel) and self._forget(command.request_id):
                return
            if isinstance(command, _COUNTED):
                self._count(command)
            self._commands.append(command)
            self._changed.notify()

    def close(self) -> None:
        """End the thread, which closes the pipe; what waits is not sent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _count(self, request: Request | EmbeddingRequest) -> None:
        num_tokens = self._num_tokens + _size(request)
        if self._num_requests >= MAX_REQUESTS or (self._num_requests and num_tokens > MAX_TOKENS):
            raise CapacityError(
                f"{self._num_requests} requests wait for the engine, which is in a long step; try "
                "again later"
            )
        self._num_requests, self._num_tokens = self._num_requests + 1, num_tokens

    def _forget(self, request_id: str) -> bool:
        """Take back a request that was not sent yet."""
        for command in self._commands:
            if isinstance(command, _COUNTED) and command.request_id == request_id:
                self._commands.remove(command)
                self._discount(command)
                return True
        return False

    def _discount(self, command: Command) -> None:
        if isinstance(command, _COUNTED):
            self._num_requests -= 1
            self._num_tokens -= _size(command)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._commands or self._is_closed)
                if self._is_closed:
                    break
                command = self._commands.popleft()
            try:
                self._pipe.send_bytes(pickle.dumps(command, protocol=5))
            except OSError:
                log.debug("the engine process is gone; a command was dropped")
            with self._changed:
                self._discount(command)
        self._pipe.close()  # here, where nobody can be writing to it


def _size(request: Request | EmbeddingRequest) -> int:
    """Tokens that have to be sent."""
    return len(request.prompt) if isinstance(request, Request) else request.num_tokens
