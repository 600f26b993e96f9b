"""/v1/stream and /v1/streams/lookup: answers that continue without their client can be resumed."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from headstart.server import sse
from headstart.server.body import Body, read_body
from headstart.server.errors import ApiError, shorten, wrong_value
from headstart.server.routing import Routes
from headstart.server.service import service_of
from headstart.structures.tenants import caller_of
from headstart.types.errors import RequestError

routes = Routes()


class LookupBody(Body):
    """POST /v1/streams/lookup."""

    conversation_ids: list[str] = Field(max_length=256)


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
    stream = service_of(http).streams.find(*name)
    if stream is None:
        raise ApiError(404, f"there is no stream of {shorten(name[1])}, or no longer")
    if not (start.isascii() and start.isdigit() and len(start) < 16):
        raise wrong_value("from", start, "a number of bytes")
    if int(start) < stream.num_dropped:
        raise RequestError(f"the first {stream.num_dropped} bytes of the stream are gone")
    chunks = stream.read(int(start))
    return StreamingResponse(chunks, media_type=stream.media_type, headers=sse.HEADERS)


@routes.delete("/v1/stream", answer="nothing")
async def stop_stream(http: HttpRequest) -> Response:
    """Stop a kept stream's answer and drop it."""
    service_of(http).streams.stop(*_conversation(http))
    return Response(status_code=204)


@routes.post("/v1/streams/lookup", body=LookupBody, answer="a list of the streams that are kept")
async def look_up_streams(http: HttpRequest) -> list[dict[str, Any]]:
    """Find the streams of conversations."""
    body = await read_body(http, LookupBody)
    streams, tenant = service_of(http).streams, caller_of(http.scope).tenant
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
