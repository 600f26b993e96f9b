"""A TCP connection that takes time: what `tc netem` does, where the kernel has no such module.

    python -m benchmarks.lib.delayed_link LISTEN_PORT TARGET_PORT ROUND_TRIP_MS GBIT_PER_S

Every byte arrives half a round trip after it was sent, and no faster than the rate allows. It has
no packets: none is lost, and no connection starts slowly.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time

_PIECE = 2**16  # bytes


async def forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float, rate: float
) -> None:
    """Pass on what comes, `delay` seconds later and at most `rate` bytes a second."""
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def send() -> None:
        while True:
            due, data = await queue.get()
            if (left := due - time.perf_counter()) > 0.0:
                await asyncio.sleep(left)
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    sending = asyncio.create_task(send())
    free = 0.0  # when the line has sent all that came before
    data = b"?"
    while data:
        data = await reader.read(_PIECE)
        free = max(free, time.perf_counter()) + len(data) / rate
        queue.put_nowait((free + delay, data))
    await sending


async def serve(listen: int, target: int, round_trip_ms: float, gbit: float) -> None:
    """Connect each connection to the target, until the process is ended."""
    delay, rate = round_trip_ms / 2000.0, gbit * 125e6

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        for one in (writer, far_writer):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(
            forward(reader, far_writer, delay, rate), forward(far_reader, writer, delay, rate)
        )

    server = await asyncio.start_server(connect, "127.0.0.1", listen)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
