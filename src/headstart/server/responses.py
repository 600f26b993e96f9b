"""POST /v1/responses: OpenAI's responses, which are stored and can be continued."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.body import read_body
from headstart.server.chat import answer_chat, count_chat_tokens
from headstart.server.errors import ApiError, shorten
from headstart.server.response_dialect import ResponsesDialect
from headstart.server.responses_body import ResponsesBody, chat_body
from headstart.server.routing import Routes
from headstart.server.schemas import ChatBody
from headstart.server.service import service_of
from headstart.server.stored_responses import Item, StoredResponse, json_bytes
from headstart.structures.tenants import caller_of
from headstart.types.errors import RequestError

routes = Routes()


@routes.post(
    "/v1/responses",
    "/responses",
    body=ResponsesBody,
    answer="`response`, with `output`, a list of items; with `stream` events",
)
async def create_response(http: HttpRequest) -> Response:
    """Answer a text or items, optionally continuing a stored response."""
    body = await read_body(http, ResponsesBody)
    store, tenant = service_of(http).responses, caller_of(http.scope).tenant
    chat, stored = await _read(http, body)

    def keep(response: dict[str, Any]) -> None:
        if body.store:
            store.put(tenant, stored(response))

    return await answer_chat(http, lambda: chat, "resp_", partial(ResponsesDialect, body, keep))


@routes.post(
    "/v1/responses/input_tokens",
    "/responses/input_tokens",
    body=ResponsesBody,
    answer="`input_tokens`",
)
async def count_response_tokens(http: HttpRequest) -> dict[str, Any]:
    """Count the tokens of the prompt that a response would answer."""
    body = await read_body(http, ResponsesBody)
    chat, _ = await _read(http, body)
    number = await count_chat_tokens(http, lambda: chat)
    return {"object": "response.input_tokens", "input_tokens": number}


@routes.get("/v1/responses/{response_id}", "/responses/{response_id}", answer="the response")
async def get_response(http: HttpRequest) -> dict[str, Any]:
    """Return a stored response."""
    return _stored(http).response


@routes.get(
    "/v1/responses/{response_id}/input_items",
    "/responses/{response_id}/input_items",
    answer="`data`: the items that the response answered",
)
async def list_input_items(http: HttpRequest) -> dict[str, Any]:
    """List the input of a stored response; the newest item first unless `order=asc`."""
    items = list(_stored(http).input_items)
    if http.query_params.get("order") != "asc":
        items.reverse()
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": False}


@routes.delete("/v1/responses/{response_id}", "/responses/{response_id}", answer="`deleted`: true")
async def delete_response(http: HttpRequest) -> dict[str, Any]:
    """Forget a stored response."""
    stored = _stored(http)
    response_id = stored.response["id"]
    service_of(http).responses.drop(caller_of(http.scope).tenant, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


async def _read(
    http: HttpRequest, body: ResponsesBody
) -> tuple[ChatBody, Callable[[dict[str, Any]], StoredResponse]]:
    """The chat that the body asks for, and what is stored of it with its response. A conversation
    may be long even if the body is short.
    """
    before = _before(http, body)

    def read() -> tuple[ChatBody, Callable[[dict[str, Any]], StoredResponse]]:
        history, size = (before.conversation, before.conversation_bytes) if before else ([], 0)
        chat, items = chat_body(body, history), _items(body.input)
        size += json_bytes(items)
        told = body.instructions, body.metadata, body.text, body.tools
        rest = json_bytes([*told, body.tool_choice, body.reasoning])
        return chat, lambda response: StoredResponse(response, items, history, size, rest)

    return await service_of(http).prompt_threads.run(read, caller_of(http.scope).tenant)


def _before(http: HttpRequest, body: ResponsesBody) -> StoredResponse | None:
    """The stored response that the body continues."""
    if body.previous_response_id is None:
        return None
    tenant = caller_of(http.scope).tenant
    before = service_of(http).responses.get(tenant, body.previous_response_id)
    if before is None:
        raise RequestError(
            f"Previous response with id {shorten(body.previous_response_id)} not found: it was not "
            "stored, was deleted, or made room for newer ones; send the conversation as input"
        )
    return before


def _items(given: Any) -> list[Item]:
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
    stored = service_of(http).responses.get(caller_of(http.scope).tenant, response_id)
    if stored is None:
        raise ApiError(404, f"Response with id {shorten(response_id)} not found")
    return stored
