"""Commands that a worker answers with one event: slot actions, texts to embed, adapters."""

from __future__ import annotations

import asyncio

from headstart.types.errors import HeadstartError
from headstart.types.request import Event, Work
from headstart.types.worker import Worker


async def single_event(worker: Worker, command: Work) -> Event:
    """Submit a command and wait for its only event; cancelling cancels it.

    Raises:
        HeadstartError: it failed.
    """
    done: asyncio.Future[Event | HeadstartError] = asyncio.get_running_loop().create_future()

    def deliver(event: Event | HeadstartError) -> None:
        if not done.done():
            done.set_result(event)

    worker.submit(command, deliver)
    try:
        event = await done
    except asyncio.CancelledError:
        worker.cancel(command.request_id)
        raise
    if isinstance(event, HeadstartError):
        raise event
    return event
