"""Streams kept in memory for each tenant, up to limits.

A request with the header `X-Conversation-Id` continues when its client leaves. Its output is kept
by tenant and conversation, and can be read from any byte on, during the answer and for a while
after it.

Source: llama.cpp's tools/server/server-stream.cpp.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.types import Message

HEADER = "x-conversation-id"
KEPT_SECONDS = 300  # after a stream's end
MAX_STREAMS = 64  # finished ones per tenant
MAX_STREAM_BYTES = 256 << 20  # of all tenants' finished streams
PIECE_BYTES = 1 << 16  # per read of a stream: a client that stops reading holds one


class KeptStream:
    """The chunks written so far and the writing task; acts as the client of the answer."""

    def __init__(self, conversation_id: str, on_end: Callable[[], object]) -> None:
        self.conversation_id, self.media_type = conversation_id, "text/event-stream"
        self._on_end = on_end
        self.started_at = int(time.time())
        self.completed_at = 0
        self.num_dropped = 0  # bytes dropped from the start
        self.data = bytearray()
        self._writer: asyncio.Task[None] | None = None
        self._stopped, self._changed = asyncio.Event(), asyncio.Event()

    @property
    def num_bytes(self) -> int:
        return self.num_dropped + len(self.data)

    async def receive(self) -> Message:
        """ASGI's `receive`: reports a disconnect when the stream is stopped."""
        await self._stopped.wait()
        return {"type": "http.disconnect"}

    def write(self, chunks: AsyncIterator[bytes]) -> None:
        """Collect these chunks as they come."""
        self._writer = asyncio.create_task(self._write(chunks))

    async def _write(self, chunks: AsyncIterator[bytes]) -> None:
        try:
            async for chunk in chunks:
                self.data += chunk
                if (excess := len(self.data) - (4 << 20)) > 0:  # drop the start
                    del self.data[:excess]
                    self.num_dropped += excess
                self._wake_readers()
        finally:
            self._end()

    def stop(self) -> None:
        """End the answer if it is still running."""
        self._stopped.set()
        if self._writer is None:
            self._end()

    def _end(self) -> None:
        self.completed_at = int(time.time())
        self._on_end()
        self._wake_readers()

    def _wake_readers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, start: int = 0) -> AsyncIterator[bytes]:
        """All bytes from `start` on, in pieces, including future ones."""
        while (at := start - self.num_dropped) >= 0:
            if chunk := bytes(self.data[at : at + PIECE_BYTES]):
                start += len(chunk)
                yield chunk
            elif self.completed_at:
                return
            else:
                await self._changed.wait()


class KeptStreams:
    """The streams of all tenants, by tenant and conversation."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], KeptStream] = {}

    def begin(self, tenant: str, conversation_id: str) -> KeptStream:
        """Create a stream; ends the conversation's previous one."""
        self.stop(tenant, conversation_id)
        over = [name for name, one in self._streams.items() if one.completed_at]
        own = [name for name in over if name[0] == tenant]
        for name in own[:-MAX_STREAMS]:
            over.remove(name)
            del self._streams[name]
        held = Counter[str]()  # bytes, by tenant
        for name in over:
            held[name[0]] += len(self._streams[name].data)
        while held.total() > MAX_STREAM_BYTES:
            most = max(held, key=held.__getitem__)
            name = next(one for one in over if one[0] == most and one in self._streams)
            held[most] -= len(self._streams.pop(name).data)
        stream = KeptStream(conversation_id, self._forget_later)
        self._streams[tenant, conversation_id] = stream
        return stream

    def find(self, tenant: str, conversation_id: str) -> KeptStream | None:
        return self._streams.get((tenant, conversation_id))

    def of_conversations(self, tenant: str, wanted: Sequence[str]) -> list[KeptStream]:
        """The streams of conversations; there may be one for each model, `conversation::model`."""
        own = [(name, one) for (owner, name), one in self._streams.items() if owner == tenant]
        return [
            stream
            for conversation in wanted
            for name, stream in own
            if name == conversation or name.startswith(conversation + "::")
        ]

    def stop(self, tenant: str, conversation_id: str) -> None:
        """End a stream and forget it; unknown ones are ignored."""
        if stream := self._streams.pop((tenant, conversation_id), None):
            stream.stop()

    def _forget_later(self) -> None:
        asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget)

    def _forget(self) -> None:
        """Drop the streams whose time is over."""
        oldest = time.time() - KEPT_SECONDS
        over = [name for name, one in self._streams.items() if 0 < one.completed_at <= oldest]
        for name in over:
            del self._streams[name]
