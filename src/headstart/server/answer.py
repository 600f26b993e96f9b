"""From requests to an HTTP answer: one JSON body, or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headstart.server import sse
from headstart.server.dialect import Choice, Dialect
from headstart.server.errors import CLIENT_GONE, ApiError, error_body, log_failure
from headstart.server.event_stream import EventStream
from headstart.server.model import Service
from headstart.server.results import timings
from headstart.server.schemas import GenerationBody
from headstart.server.threads import ClientGoneError, unless_left
from headstart.types.request import (
    Event,
    FinishEvent,
    ProgressEvent,
    PromptEvent,
    TokenEvent,
)

FEW_PROBABILITIES = 2000  # in an answer that is written sooner than a thread takes over


async def answer(http: HttpRequest, service: Service, prepare: Callable[[], Dialect]) -> Response:
    """Run a call; `prepare` reads and tokenizes the prompt, off the event loop.

    Raises:
        ApiError, HeadstartError: before the first event; later ones end the stream.
    """
    try:
        dialect = await unless_left(http.receive, service.prompt_threads.run(prepare))
    except ClientGoneError:
        return Response(status_code=CLIENT_GONE)
    pings = _ping_seconds(dialect.body, service.config.sse_ping_interval)
    max_silence = pings if dialect.can_ping and dialect.body.stream else None
    async with AsyncExitStack() as stack:
        requests = [choice.request for choice in dialect.choices]
        events = await stack.enter_async_context(
            EventStream(service.worker, requests, http.receive, max_silence)
        )
        try:
            if not dialect.body.stream:
                return await _whole(dialect, events, service)
            # an early failure still gets its own status
            first = await events.take()
        except ClientGoneError:
            return Response(status_code=CLIENT_GONE)
        chunks = _stream(dialect, events, first, stack.pop_all())
        return _StreamedAnswer(chunks, media_type=dialect.media_type, headers=sse.HEADERS)


class _StreamedAnswer(StreamingResponse):
    """Without Starlette's task that waits for the client to leave: the event stream has one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


async def _whole(dialect: Dialect, events: EventStream, service: Service) -> Response:
    while not events.is_over:
        for index, event in await events.take():
            _take(dialect, index, event)
    told = [one for c in dialect.choices for one in (*c.prompt_logprobs, *c.logprobs)]
    if sum(1 + len(one.top) for one in told) <= FEW_PROBABILITIES:
        body = orjson.dumps(dialect.whole())
    else:
        body = await service.prompt_threads.run(lambda: orjson.dumps(dialect.whole()))
    return Response(body, media_type="application/json")


async def _stream(
    dialect: Dialect,
    events: EventStream,
    first: Sequence[tuple[int, Event]],
    stack: AsyncExitStack,
) -> AsyncIterator[bytes]:
    async with stack:
        try:
            taken = first
            while True:
                chunks = [_chunks(dialect, index, event) for index, event in taken]
                if data := b"".join(chunks) if taken else sse.PING:
                    yield data
                if events.is_over:
                    break
                taken = await events.take()
            if dialect.ends_with_done:
                yield sse.DONE
        except ClientGoneError:
            return
        except Exception as error:  # the status is sent already: the stream itself must say it
            log_failure(error)
            yield dialect.encode_error(error_body(error))


def _take(dialect: Dialect, index: int, event: Event) -> None:
    choice = dialect.choices[index]
    match event:
        case TokenEvent():
            choice.add(event)
        case PromptEvent():
            choice.prompt_logprobs += event.logprobs
        case ProgressEvent():
            choice.progress = event
        case FinishEvent():
            choice.end(event)


def _chunks(dialect: Dialect, index: int, event: Event) -> bytes:
    """Take an event in and frame what it gives the client; may be empty."""
    choice = dialect.choices[index]
    chunks: list[dict[str, Any]] = []
    match event:
        case PromptEvent():
            choice.prompt_logprobs += event.logprobs
        case ProgressEvent():
            choice.progress = event
            if dialect.body.return_progress:
                chunks = [*_open(dialect, choice), *dialect.progress(choice, event)]
        case TokenEvent():
            piece = choice.add(event)
            choice.logprobs.clear()  # sent with this piece, and never again
            chunks = _open(dialect, choice)
            if dialect.wants(piece):
                chunks += dialect.deltas(choice, piece)
            if dialect.body.timings_per_token and chunks:
                chunks[-1]["timings"] = timings(choice.stats)
        case FinishEvent():
            rest = choice.end(event)
            chunks = _open(dialect, choice)
            if dialect.wants(rest):
                chunks += dialect.deltas(choice, rest)
            chunks += dialect.closing(choice)
    return b"".join(map(dialect.encode, chunks))


def _open(dialect: Dialect, choice: Choice) -> list[dict[str, Any]]:
    if choice.is_open:
        return []
    choice.is_open = True
    return dialect.opening(choice)


def _ping_seconds(body: GenerationBody, usual: int) -> float | None:
    seconds = body.sse_ping_interval
    if seconds is None:
        seconds = usual
    if seconds < -1 or seconds == 0:
        raise ApiError(
            400, f"sse_ping_interval is {seconds} but must be 1 or more seconds, or -1 for none"
        )
    return None if seconds == -1 else seconds
