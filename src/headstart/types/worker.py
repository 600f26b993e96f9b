"""What the server needs from whoever runs the scheduler, in a thread or in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headstart.types.errors import HeadstartError
from headstart.types.report import WorkerInfo, WorkerReport
from headstart.types.request import Event, Work

Deliver = Callable[[Event | HeadstartError], None]
"""Takes the events of one request, in the asyncio loop."""


class Worker(Protocol):
    """Runs requests. All methods belong to one asyncio loop."""

    # "loading", "ready", "sleeping", "waking", "restarting", "failed" or "closed"
    status: str
    failure: str  # why the status is "restarting" or "failed"; else empty
    info: WorkerInfo | None  # None until it was ready once

    async def start(self) -> None:
        """Load the models; return when ready.

        Raises:
            ConfigError, ModelError: they cannot be loaded.
        """

    def submit(self, request: Work, deliver: Deliver) -> None:
        """Run a request; `deliver` is called with each event, last a FinishEvent or an exception.

        Texts to embed are answered by EmbeddingEvents, all else by one ReplyEvent, or by an
        exception.

        The exception may be a CapacityError (the queue is full), a RequestError (a value cannot be
        honoured), an EngineError (decoding failed) or a WorkerDeadError (the engine ended).

        Raises:
            CapacityError: the engine is not ready, or takes nothing and too many requests wait.
        """

    def cancel(self, request_id: str) -> None:
        """Stop a request, after which nothing is delivered; one that is over is ignored."""

    async def report(self) -> WorkerReport:
        """Counters, slots and speculators as of the last step; never waits for a step."""

    async def sleep(self) -> None:
        """Free the model's memory, unless something runs."""

    async def wake(self) -> None:
        """Load the model again if it sleeps; return when it is ready.

        Raises:
            CapacityError: it cannot be loaded; it sleeps on.
        """

    async def close(self) -> None:
        """Stop; requests in flight get WorkerDeadError. Doing it twice is harmless."""

    def kill(self) -> None:
        """End the engine in the middle of its step; what it learned since it was last saved is
        lost.
        """
