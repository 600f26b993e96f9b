"""/v1/stream and /v1/streams/lookup: answers that continue without their client can be resumed.

A request with the header `X-Conversation-Id` continues when its client leaves. Its output is kept
by tenant and conversation, up to limits, and can be read from any byte on, during the answer and
for a while after it.

Source: llama.cpp's tools/server/server-stream.cpp.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import orjson
from pydantic import Field
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from headstart.server import sse
from headstart.server.body import Body, check_length
from headstart.server.errors import ApiError, error_body, shorten, wrong_value
from headstart.server.routing import Routes
from headstart.structures.tenants import caller_of
from headstart.types.errors import RequestError

KEPT_SECONDS = 300  # after a stream's end
KEPT_BYTES = 4 << 20  # of each stream, the newest
MAX_STREAM_BYTES = 256 << 20  # of all tenants' finished streams; a short one counts as a piece
PIECE_BYTES = 1 << 16  # per read of a stream: a client that stops reading holds one

routes = Routes()


class KeptStream:
    """The client of an answer, which keeps what was sent so far."""

    def __init__(self, conversation_id: str, keep: Callable[[], object]) -> None:
        """`keep` is called at the end, unless the stream is stopped."""
        self.conversation_id, self.media_type = conversation_id, "text/event-stream"
        self._keep = keep
        self.started_at = int(time.time())
        self.completed_at = 0
        self.num_dropped = 0  # bytes dropped from the start
        self.data = bytearray()
        self._writer: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None  # until it is forgotten
        self._stopped, self._changed = asyncio.Event(), asyncio.Event()

    @property
    def num_bytes(self) -> int:
        return self.num_dropped + len(self.data)

    @property
    def held_bytes(self) -> int:
        return max(PIECE_BYTES, len(self.data))

    @property
    def has_begun(self) -> bool:
        return self._writer is not None

    async def receive(self) -> Message:
        """ASGI's `receive`: reports a disconnect when the stream is stopped."""
        await self._stopped.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI's `send`: keeps the body."""
        self.data += message.get("body", b"")
        if (excess := len(self.data) - KEPT_BYTES) > 0:  # drop the start
            del self.data[:excess]
            self.num_dropped += excess
        self._wake_readers()

    def begin(self, answer: Coroutine[None, None, None], media_type: str) -> None:
        """Run `answer`, which sends to this stream."""
        self.media_type = media_type
        self._writer = asyncio.create_task(self._run(answer))

    async def _run(self, answer: Coroutine[None, None, None]) -> None:
        try:
            await answer
        finally:
            self._end()

    def stop(self) -> None:
        """End the answer if it is still running."""
        self._stopped.set()
        if self.timer is not None:
            self.timer.cancel()
        elif not self.has_begun:
            self._end()

    def _end(self) -> None:
        self.completed_at = int(time.time())
        if not self._stopped.is_set():
            self._keep()
        self._wake_readers()

    def _wake_readers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def response(self, start: int = 0) -> Response:
        """All bytes from `start` on, in pieces, including future ones.

        Raises:
            RequestError: they are not all kept.
        """
        if start < self.num_dropped:
            raise self._gap()
        return StreamingResponse(self.read(start), media_type=self.media_type, headers=sse.HEADERS)

    async def read(self, start: int = 0) -> AsyncIterator[bytes]:
        """The pieces of `response`; for a reader that is too slow, an error event is the last."""
        while (at := start - self.num_dropped) >= 0:
            if chunk := bytes(self.data[at : at + PIECE_BYTES]):
                start += len(chunk)
                yield chunk
            elif self.completed_at:
                return
            else:
                await self._changed.wait()
        error = self._gap()
        # line breaks end an event or a line that was cut, or the error would become part of it
        if self.media_type == "text/event-stream":
            yield b"\n\n" + sse.event(error_body(error))
        else:  # Ollama's lines
            yield b"\n" + orjson.dumps({"error": str(error)}) + b"\n"

    def _gap(self) -> RequestError:
        return RequestError(
            f"the first {self.num_dropped} bytes of the stream are gone: the newest {KEPT_BYTES} "
            "are kept; read from a later byte"
        )


class KeptStreams:
    """The streams of all tenants, by tenant and conversation."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], KeptStream] = {}
        self._held = Counter[str]()  # bytes of finished ones, by tenant

    def begin(self, tenant: str, conversation_id: str) -> KeptStream:
        """Create a stream; ends the conversation's previous one."""
        check_length("X-Conversation-Id", conversation_id, 256, "characters")
        self.stop(tenant, conversation_id)
        keep = partial(self._keep, tenant, conversation_id)
        stream = self._streams[tenant, conversation_id] = KeptStream(conversation_id, keep)
        return stream

    @contextmanager
    def beginning(self, tenant: str, conversation_id: str) -> Iterator[KeptStream]:
        """A new stream; forgotten unless its answer begins in this context.

        Raises:
            RequestError: it was stopped before.
        """
        stream = self.begin(tenant, conversation_id)
        try:
            yield stream
        except ClientDisconnect as error:
            raise RequestError("this answer was cancelled before it began") from error
        finally:
            if not stream.has_begun and self.find(tenant, conversation_id) is stream:
                self.stop(tenant, conversation_id)

    def _keep(self, tenant: str, conversation_id: str) -> None:
        """Keep a finished stream for a while. The tenant that holds most makes room."""
        stream = self._streams.pop((tenant, conversation_id))
        self._streams[tenant, conversation_id] = stream  # the last to go
        loop = asyncio.get_running_loop()
        stream.timer = loop.call_later(KEPT_SECONDS, self.stop, tenant, conversation_id)
        self._held[tenant] += stream.held_bytes
        while self._held.total() > MAX_STREAM_BYTES:
            most = max(self._held, key=self._held.__getitem__)
            items = self._streams.items()
            self.stop(*next(name for name, one in items if name[0] == most and one.completed_at))

    def find(self, tenant: str, conversation_id: str) -> KeptStream | None:
        return self._streams.get((tenant, conversation_id))

    def of_conversations(self, tenant: str, wanted: Sequence[str]) -> list[KeptStream]:
        """The streams of conversations; there may be one for each model, `conversation::model`."""
        names = set(wanted)
        return [
            one
            for (owner, name), one in self._streams.items()
            if owner == tenant
            and not names.isdisjoint((name, name.partition("::")[0], name.rpartition("::")[0]))
        ]

    def stop(self, tenant: str, conversation_id: str) -> None:
        """End a stream and forget it; unknown ones are ignored."""
        if stream := self._streams.pop((tenant, conversation_id), None):
            if stream.completed_at:
                self._held -= Counter({tenant: stream.held_bytes})
            stream.stop()


class LookupBody(Body):
    """POST /v1/streams/lookup."""

    conversation_ids: list[str] = Field(max_length=256)


def _streams_of(http: HttpRequest) -> KeptStreams:
    streams: KeptStreams = http.app.state.streams
    return streams


def _conversation(http: HttpRequest) -> tuple[str, str]:
    conversation_id = http.query_params.get("conv_id")
    if not conversation_id:
        raise RequestError("conv_id is missing; name the conversation as ?conv_id=ID")
    return caller_of(http.scope).tenant, conversation_id


@routes.get("/v1/stream", answer="the events of the answer from byte `from` on")
async def resume_stream(http: HttpRequest) -> Response:
    """Replay a kept stream, and follow it to its end."""
    name = _conversation(http)
    start = http.query_params.get("from") or "0"
    stream = _streams_of(http).find(*name)
    if stream is None:
        raise ApiError(404, f"there is no stream of {shorten(name[1])}, or no longer")
    if not (start.isascii() and start.isdigit() and len(start) < 16):
        raise wrong_value("from", start, "a number of bytes")
    return stream.response(int(start))


@routes.delete("/v1/stream", answer="nothing")
async def stop_stream(http: HttpRequest) -> Response:
    """Stop a kept stream's answer and drop it."""
    _streams_of(http).stop(*_conversation(http))
    return Response(status_code=204)


@routes.post("/v1/streams/lookup", answer="a list of the streams that are kept")
async def look_up_streams(http: HttpRequest, body: LookupBody) -> list[dict[str, Any]]:
    """Find the streams of conversations."""
    streams, tenant = _streams_of(http), caller_of(http.scope).tenant
    return [
        {
            "conversation_id": one.conversation_id,
            "is_done": one.completed_at > 0,
            "total_bytes": one.num_bytes,
            "started_at": one.started_at,
            "completed_at": one.completed_at,
        }
        for one in streams.of_conversations(tenant, body.conversation_ids)
    ]
