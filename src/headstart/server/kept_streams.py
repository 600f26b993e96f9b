"""Streams that outlive their connection, by tenant and conversation.

A request with the header `X-Conversation-Id` goes on when its client leaves. What it would have
got is kept, and can be read from any byte on, while the answer is written and for a while after
it.

Source: llama.cpp's tools/server/server-stream.cpp.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from starlette.types import Message

HEADER = "x-conversation-id"
MAX_BYTES = 4 << 20  # of a stream; its beginning goes first
MAX_STREAMS = 64  # that are over, of one tenant


class KeptStream:
    """What was written so far, and who writes it; to the answer it is the client."""

    def __init__(self, conversation_id: str, media_type: str) -> None:
        self.conversation_id, self.media_type = conversation_id, media_type
        self.started_at = int(time.time())
        self.completed_at = 0
        self.num_dropped = 0  # bytes of its beginning
        self.data = bytearray()
        self._writer: asyncio.Task[None] | None = None
        self._stopped, self._changed = asyncio.Event(), asyncio.Event()

    @property
    def num_bytes(self) -> int:
        return self.num_dropped + len(self.data)

    async def receive(self) -> Message:
        """ASGI's: it disconnects when the stream is stopped."""
        await self._stopped.wait()
        return {"type": "http.disconnect"}

    def write(self, chunks: AsyncIterator[bytes]) -> None:
        """Keep these chunks as they come."""
        self._writer = asyncio.create_task(self._write(chunks))

    async def _write(self, chunks: AsyncIterator[bytes]) -> None:
        try:
            async for chunk in chunks:
                self.data += chunk
                if (excess := len(self.data) - MAX_BYTES) > 0:
                    del self.data[:excess]
                    self.num_dropped += excess
                self._wake_readers()
        finally:
            self._end()

    def stop(self) -> None:
        """End the answer if it is still written."""
        self._stopped.set()
        if self._writer is None:
            self._end()

    def _end(self) -> None:
        self.completed_at = int(time.time())
        self._wake_readers()

    def _wake_readers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, start: int = 0) -> AsyncIterator[bytes]:
        """What was written from this byte on, and what is, up to the end."""
        while start >= self.num_dropped:
            if chunk := bytes(self.data[start - self.num_dropped :]):
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

    def begin(self, namespace: str, conversation_id: str, media_type: str) -> KeptStream:
        """A new stream; the conversation's last one ends."""
        self.stop(namespace, conversation_id)
        over = [name for name, one in self._streams.items() if one.completed_at]
        own = [name for name in over if name[0] == namespace]
        oldest = time.time() - 300.0  # seconds that a stream is kept after its end
        for name in over:
            if self._streams[name].completed_at < oldest or name in own[:-MAX_STREAMS]:
                del self._streams[name]
        stream = KeptStream(conversation_id, media_type)
        self._streams[namespace, conversation_id] = stream
        return stream

    def find(self, namespace: str, conversation_id: str) -> KeptStream | None:
        return self._streams.get((namespace, conversation_id))

    def of_conversation(self, namespace: str, conversation_id: str) -> list[KeptStream]:
        """Those of a conversation; there may be one for each model, `conversation::model`."""
        return [
            stream
            for (tenant, name), stream in self._streams.items()
            if tenant == namespace
            and (name == conversation_id or name.startswith(conversation_id + "::"))
        ]

    def stop(self, namespace: str, conversation_id: str) -> None:
        """End a stream and forget it; unknown ones are ignored."""
        if stream := self._streams.pop((namespace, conversation_id), None):
            stream.stop()
