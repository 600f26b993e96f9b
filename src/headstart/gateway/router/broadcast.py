"""Events about models, for every listener."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]


class Broadcast:
    """One queue for each listener. Belongs to one asyncio loop."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[Event | None]] = set()
        self._is_over = False
        self.num_told = Counter[tuple[str, str]]()  # by event, and the status in it

    def listen(self) -> asyncio.Queue[Event | None]:
        """Events from now on; None is the last."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        if self._is_over:
            queue.put_nowait(None)
        self._queues.add(queue)
        return queue

    def stop_listening(self, queue: asyncio.Queue[Event | None]) -> None:
        self._queues.discard(queue)

    def tell(self, event: str, model: str, data: Mapping[str, Any] | None = None) -> None:
        """Send an event to all listeners."""
        self.num_told[event, str((data or {}).get("status", ""))] += 1
        message = {"model": model, "event": event} | ({"data": data} if data is not None else {})
        for queue in self._queues:
            queue.put_nowait(message)

    def close(self) -> None:
        """End all streams of events, which would keep the server from ending."""
        self._is_over = True
        for queue in self._queues:
            queue.put_nowait(None)
