"""Runs the requests of a call and answers with one JSON body or a stream of chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import orjson
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headstart.server import sse
from headstart.server.answer_numbers import timings
from headstart.server.body import HEADER
from headstart.server.dialect import Choice, Chunk, Dialect
from headstart.server.errors import error_body, log_failure, shaped
from headstart.server.event_stream import EventStream, num_alternatives
from headstart.server.kept_streams import KeptStreams
from headstart.server.media import Media, Source, read_media
from headstart.server.prompts import Prompt
from headstart.server.schemas import ChatBody, GenerationBody
from headstart.server.service import service_of
from headstart.server.threads import unless_left
from headstart.server.tool_use import prepare_reading
from headstart.server.translate import Call, make_requests
from headstart.structures.tenants import caller_of
from headstart.types.errors import NotSupportedError
from headstart.types.request import Event, FinishEvent, ProgressEvent, TokenEvent, TokenLogprob

MAX_PARTS = 2000  # parts of an answer that are encoded faster than handing over to a thread takes


def new_call(http: HttpRequest, prefix: str) -> Call:
    """Start a call whose id begins with `prefix`.

    Raises:
        NotSupportedError: the model does not generate text.
    """
    service, tenant = service_of(http), caller_of(http.scope).tenant
    if service.info.why_no_text:
        raise NotSupportedError(service.info.why_no_text)
    return Call(
        id=prefix + secrets.token_hex(12),
        created=int(time.time()),
        fingerprint=service.fingerprint,
        tenant=tenant,
        model=service.served,
        info=service.info,
        adapter_scales=service.adapter_scales.get(tenant),
    )


async def answer(
    http: HttpRequest,
    call: Call,
    body: GenerationBody,
    read: Callable[[Media], list[Prompt]],
    dialect: Callable[..., Dialect],
    sources: Sequence[Source] = (),
) -> Response:
    """Run a call, in the form of `dialect`; `read` renders and tokenizes, off the event loop, given
    the parts of the call's files.

    Raises:
        ClientDisconnect: the client disconnected before the answer began.
        HeadstartError: before the first event; later errors end the stream.
    """

    def write(media: Media) -> Dialect:
        prompts = read(media)
        requests = make_requests(body, prompts, call)
        each = len(requests) // len(prompts)
        choices = [Choice(i, request, prompts[i // each]) for i, request in enumerate(requests)]
        if isinstance(body, ChatBody):
            prepare_reading(body, call.model, choices)
        return dialect(call, body, choices)

    async def prepare(receive: Receive) -> Dialect:
        media = await read_media(http, sources, receive)
        work = service_of(http).prompt_threads.run(lambda: write(media), call.tenant)
        return await unless_left(receive, work)

    if body.stream and (conversation := http.headers.get(HEADER)):
        return await _kept(http, prepare, conversation)
    writer = await prepare(http.receive)
    if not body.stream:
        return await _answer_whole(http, writer)
    return _StreamedAnswer(writer, *await _begin_stream(http, writer, http.receive))


async def _kept(
    http: HttpRequest, prepare: Callable[[Receive], Awaitable[Dialect]], conversation: str
) -> Response:
    """A streamed answer that continues when its client leaves.

    Raises:
        RequestError: it was stopped before it began.
    """
    tenant = caller_of(http.scope).tenant
    streams: KeptStreams = http.app.state.streams
    with streams.beginning(tenant, conversation) as kept:
        dialect = await prepare(kept.receive)
        if streams.find(tenant, conversation) is not kept:  # stopped when it was just prepared
            raise ClientDisconnect
        _, chunks = await _begin_stream(http, dialect, kept.receive)
        kept.begin(StreamingResponse(chunks).stream_response(kept.send), dialect.media_type)
    return kept.response()


async def _submit(
    stack: AsyncExitStack, http: HttpRequest, dialect: Dialect, receive: Receive
) -> EventStream:
    """Run the requests until `stack` is closed; `receive` reports a disconnect."""
    service = service_of(http)
    seconds = dialect.body.sse_ping_interval
    seconds = service.config.sse_ping_interval if seconds is None else seconds
    takes_pings = dialect.media_type == Dialect.media_type  # a line of JSON cannot be a comment
    has_pings = seconds > 0 and takes_pings and dialect.body.stream
    max_silence = seconds if has_pings else None
    requests = [choice.request for choice in dialect.choices]
    stack.enter_context(service.holding(caller_of(http.scope).tenant, len(requests)))
    events = EventStream(service.worker, requests, receive, max_silence)
    return await stack.enter_async_context(events)


async def _begin_stream(
    http: HttpRequest, dialect: Dialect, receive: Receive
) -> tuple[EventStream, AsyncIterator[bytes]]:
    """The events of a streamed answer, and its pieces."""
    async with AsyncExitStack() as stack:
        events = await _submit(stack, http, dialect, receive)
        first = await events.take()  # so that an early failure still gets its own status
        return events, _stream(dialect, events, first, stack.pop_all(), http.scope)


class _StreamedAnswer(StreamingResponse):
    """Omits Starlette's task that waits for a disconnect: the event stream has one. While the
    client reads, events are written to its connection as they arrive: waking the answer's task
    takes longer, and so does each middleware on the way.
    """

    def __init__(self, dialect: Dialect, events: EventStream, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(chunks, media_type=dialect.media_type, headers=sse.HEADERS)
        self._dialect, self._events = dialect, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_paused := scope.get("headstart.is_paused"):
            self._events.handle_directly = partial(
                self._write_directly, is_paused, scope["headstart.write"]
            )
        await self.stream_response(send)

    def _write_directly(
        self,
        is_paused: Callable[[], bool],
        write: Callable[[bytes], object],
        index: int,
        event: Event,
    ) -> bool:
        """Write an event to the connection; returns False if that would block."""
        if is_paused() or _num_parts(self._dialect.choices[index], event) > MAX_PARTS:
            return False
        if data := _chunks(self._dialect, index, event):
            write(b"%x\r\n%b\r\n" % (len(data), data))  # uvicorn's framing of streams: chunked
        return True


async def _answer_whole(http: HttpRequest, dialect: Dialect) -> Response:
    def add(index: int, event: Event) -> bool:
        dialect.choices[index].take(event)
        return True

    async with AsyncExitStack() as stack:
        events = await _submit(stack, http, dialect, http.receive)
        events.handle_directly = add
        while not events.is_over:
            for index, event in await events.take():
                add(index, event)
        num_parts = sum(
            _num_told(choice.prompt_logprobs) + _num_told(choice.logprobs) + _num_last_parts(choice)
            for choice in dialect.choices
        )
        body = await _encoded(lambda: orjson.dumps(dialect.whole()), num_parts, http.scope)
        return Response(body, media_type="application/json")


async def _encoded(encode: Callable[[], bytes], num_parts: int, scope: Scope) -> bytes:
    """Result of `encode`, called in a thread if there are many parts."""
    if num_parts <= MAX_PARTS:
        return encode()
    threads = service_of(HttpRequest(scope)).answer_threads
    return await threads.run(encode, caller_of(scope).tenant)


async def _stream(
    dialect: Dialect,
    events: EventStream,
    first: Sequence[tuple[int, Event]],
    stack: AsyncExitStack,
    scope: Scope,  # not the request, which would hold its body
) -> AsyncIterator[bytes]:
    async with stack:
        try:
            taken = first
            while True:
                num_parts = sum(_num_parts(dialect.choices[index], event) for index, event in taken)
                if data := await _encoded(partial(_encode, dialect, taken), num_parts, scope):
                    yield data
                if events.is_over:
                    break
                taken = await events.take()
            if dialect.ends_with_done:
                yield sse.DONE
        except ClientDisconnect:
            return
        except Exception as error:  # the status was sent already
            log_failure(error)
            yield dialect.encode_error(shaped(error_body(error), scope["path"]))


def _num_parts(choice: Choice, event: Event) -> int:
    """Number of parts sent for this event. Before the first event, `echo` adds the prompt's."""
    num_before = 0 if choice.is_open else _num_told(choice.prompt_logprobs)
    num_after = _num_last_parts(choice) if isinstance(event, FinishEvent) else 0
    return num_before + num_alternatives(event) + num_after


def _num_told(logprobs: Sequence[TokenLogprob]) -> int:
    """Number of tokens and alternatives; each token has equally many."""
    return len(logprobs) * (1 + logprobs[-1].num_alternatives) if logprobs else 0


def _num_last_parts(choice: Choice) -> int:
    """The final chunk repeats `logit_bias`, and may include reasoning token counts and
    counterfactual drafts.
    """
    num_told = len(choice.request.sampling.logit_bias) + len(choice.emissions)
    return num_told + len(choice.message.thoughts)


def _encode(dialect: Dialect, taken: Sequence[tuple[int, Event]]) -> bytes:
    """Encode events for the client; a ping if there are none."""
    if not taken:
        return sse.PING
    return b"".join([_chunks(dialect, index, event) for index, event in taken])


def _chunks(dialect: Dialect, index: int, event: Event) -> bytes:
    """Add an event to its choice and encode what the client gets of it; may be empty."""
    choice, body = dialect.choices[index], dialect.body
    piece = choice.take(event)
    has_news = piece.events or piece.logprobs or (piece.tokens and dialect.has_extras)
    chunks: list[Chunk] = []
    match event:
        case ProgressEvent() if body.return_progress:
            chunks = [*_open(dialect, choice), *dialect.progress(choice, event)]
        case TokenEvent():
            choice.logprobs.clear()  # sent with this piece only
            chunks = _open(dialect, choice)
            chunks += dialect.deltas(choice, piece) if has_news else []
            if body.timings_per_token and chunks:
                chunks[-1]["timings"] = timings(choice.stats)
        case FinishEvent():
            chunks = _open(dialect, choice)
            chunks += dialect.deltas(choice, piece) if has_news else []
            chunks += dialect.closing(choice)
    return b"".join(map(dialect.encode, chunks))


def _open(dialect: Dialect, choice: Choice) -> list[Chunk]:
    if choice.is_open:
        return []
    choice.is_open = True
    return dialect.opening(choice)
