"""POST /v1/responses: OpenAI's responses, on top of chat; stored ones can be read and continued."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.answer import answer
from headstart.server.body import read_body
from headstart.server.calls import make_choices, new_call
from headstart.server.chat import num_logprobs
from headstart.server.dialect import Dialect
from headstart.server.errors import ApiError, shorten
from headstart.server.model import Service, service_of
from headstart.server.prompts import read_chat, render_messages
from headstart.server.response_dialect import ResponseInput, ResponsesDialect
from headstart.server.response_store import StoredResponse
from headstart.server.responses_body import ResponsesBody, chat_body
from headstart.server.routing import Routes, delete, get, post
from headstart.server.schemas import ChatBody
from headstart.server.tool_use import prepare_reading

router = Routes()


@post(
    router,
    "/v1/responses",
    "/responses",
    body=ResponsesBody,
    answer="`response`, with `output`, a list of items; with `stream` events",
)
async def create_response(http: HttpRequest) -> Response:
    """Answer a text or items, after those of a stored response."""
    service = service_of(http)
    body = await read_body(http, ResponsesBody)
    chat = _chat(http, service, body)
    call = new_call(http, service, "resp", stop=service.served.template.stop)
    call = dataclasses.replace(call, id=call.id.replace("-", "_"))
    asked = ResponseInput(body, chat.messages[bool(body.instructions) :], _items(body.input))

    def prepare() -> Dialect:
        size = call.info.context_size
        rendered = render_messages(chat, call.model, size)
        prompts = [read_chat(rendered, call.model, size)]
        choices = make_choices(chat, prompts, call, num_logprobs(chat, call))
        prepare_reading(chat, call.model, rendered, choices)
        return ResponsesDialect(call, chat, choices, asked, service.responses)

    return await answer(http, service, prepare)


@post(
    router,
    "/v1/responses/input_tokens",
    "/responses/input_tokens",
    body=ResponsesBody,
    answer="`input_tokens`",
)
async def count_response_tokens(http: HttpRequest) -> Response:
    """Count the tokens of the prompt that a response would answer."""
    service = service_of(http)
    chat = _chat(http, service, await read_body(http, ResponsesBody))

    def count() -> int:
        model, size = service.served, service.info.context_size
        return len(read_chat(render_messages(chat, model, size), model, size).tokens)

    number = await service.text_threads.run(count)
    return _json({"object": "response.input_tokens", "input_tokens": number})


@get(router, "/v1/responses/{response_id}", "/responses/{response_id}", answer="the response")
async def get_response(http: HttpRequest) -> Response:
    """Return a stored response."""
    return _json(_stored(http).response)


@get(
    router,
    "/v1/responses/{response_id}/input_items",
    "/responses/{response_id}/input_items",
    answer="`data`: the items that the response answered",
)
async def list_input_items(http: HttpRequest) -> Response:
    """List what a stored response answered; the newest first unless `order=asc`."""
    items = list(_stored(http).input_items)
    if http.query_params.get("order") != "asc":
        items.reverse()
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return _json(
        {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": False}
    )


@delete(router, "/v1/responses/{response_id}", "/responses/{response_id}", answer="`deleted`: true")
async def delete_response(http: HttpRequest) -> Response:
    """Forget a stored response."""
    stored = _stored(http)
    response_id = stored.response["id"]
    service_of(http).responses.drop(http.scope["headstart.namespace"], response_id)
    return _json({"id": response_id, "object": "response", "deleted": True})


def _chat(http: HttpRequest, service: Service, body: ResponsesBody) -> ChatBody:
    if body.previous_response_id is None:
        return chat_body(body, [])
    namespace = http.scope["headstart.namespace"]
    before = service.responses.get(namespace, body.previous_response_id)
    if before is None:
        raise ApiError(
            400,
            f"Previous response with id {shorten(body.previous_response_id)} not found: it was not "
            "stored, was deleted, or made room for newer ones; send the conversation as input",
        )
    return chat_body(body, list(before.messages))


def _items(given: Any) -> list[dict[str, Any]]:
    """The input as items, each with an id."""
    if isinstance(given, str):
        part = {"type": "input_text", "text": given}
        given = [{"type": "message", "role": "user", "content": [part]}]
    return [
        {"id": f"item_{secrets.token_hex(12)}", "type": "message", "status": "completed"} | item
        for item in given
    ]


def _stored(http: HttpRequest) -> StoredResponse:
    response_id = http.path_params["response_id"]
    stored = service_of(http).responses.get(http.scope["headstart.namespace"], response_id)
    if stored is None:
        raise ApiError(404, f"Response with id {shorten(response_id)} not found")
    return stored


def _json(data: Any) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
