"""What the server needs from whoever runs the scheduler, in a thread or in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from headstart.scheduler.report import WorkerInfo, WorkerReport
from headstart.scheduler.request import Event, Request


class Worker(Protocol):
    """Runs requests. All methods belong to one asyncio loop."""

    status: str  # "loading", "ready", "restarting", "failed" or "closed"
    failure: str  # why the status is "restarting" or "failed"; else empty
    info: WorkerInfo | None  # None until it was ready once

    async def start(self) -> None:
        """Load the models; return when ready.

        Raises:
            ConfigError, ModelError: they cannot be loaded.
        """

    def submit(self, request: Request) -> AsyncIterator[Event]:
        """Run a request; ends after a FinishEvent. Closing the iterator cancels the request.

        Raises (from the first `anext`):
            CapacityError: the waiting queue is full.
            RequestError: the prompt does not fit, or a value cannot be honoured.
            WorkerDeadError: the engine process ended, or is not ready.
            EngineError: decoding failed.
        """

    async def report(self) -> WorkerReport:
        """Counters, slots and speculators as of the last step; never waits for a step."""

    async def close(self) -> None:
        """Stop; requests in flight get WorkerDeadError. Doing it twice is harmless."""

    def kill(self) -> None:
        """End the engine in the middle of its step; what it learned since it was last saved is
        lost.
        """
