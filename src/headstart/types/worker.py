"""The interface of a worker, which runs the scheduler, for the server."""

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
    info: WorkerInfo | None  # None until ready once

    async def start(self) -> None:
        """Load the models; return when ready.

        Raises:
            ConfigError, ModelError: they cannot be loaded.
        """

    def submit(self, request: Work, deliver: Deliver) -> None:
        """Run a request; `deliver` is called with each event, last a FinishEvent or an exception.

        Texts to embed are answered by EmbeddingEvents, other commands by one ReplyEvent, or by an
        exception.

        The exception may be a CapacityError (the queue is full), a RequestError (a value cannot be
        honoured), an EngineError (decoding failed) or a WorkerDeadError (the engine ended).

        Raises:
            CapacityError: the engine is not ready, or takes nothing and the queue is full.
        """

    def cancel(self, request_id: str) -> None:
        """Stop a request; nothing is delivered for it afterwards. Finished ones are ignored."""

    async def report(self) -> WorkerReport:
        """Counters, slots and speculators as of the last step; never waits for a step."""

    async def sleep(self) -> None:
        """Free the model's memory, unless something runs."""

    async def wake(self) -> None:
        """Load the model again if it sleeps; return when ready.

        Raises:
            CapacityError: it cannot be loaded and stays unloaded.
        """

    async def close(self) -> None:
        """Stop; requests in flight get WorkerDeadError. May be called twice."""

    def kill(self) -> None:
        """End the engine in the middle of its step; control's learning since the last save is
        lost.
        """
