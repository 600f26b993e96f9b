"""uvicorn, as quick to end as there is something to wait for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn


class QuickServer(uvicorn.Server):
    """Takes no time to end; uvicorn looks ten times a second whether it shall, and waits as long
    for connections. Leaves the signals of the test's process alone.
    """

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(0.001)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()
