"""POST /v1/responses: OpenAI's responses, which are stored and can be continued."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.chat import answer_chat, count_chat_tokens
from headstart.server.errors import UNKNOWN_RESPONSE, ApiError, shorten
from headstart.server.response_dialect import ResponsesBody, ResponsesDialect, chat_body
from headstart.server.routing import Routes
from headstart.server.schemas import ChatBody
from headstart.server.service import service_of
from headstart.structures.tenants import caller_of
from headstart.types.errors import RequestError

routes = Routes()


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, and all items of its conversation, without instructions.

    All but the response is weighed before the answer, off the event loop.
    """

    response: dict[str, Any]
    conversation: list[dict[str, Any]]
    conversation_bytes: int = 0  # of JSON, as all bytes here
    rest_bytes: int = 0  # of the response without its output

    @property
    def num_bytes(self) -> int:
        return self.conversation_bytes + self.rest_bytes


def json_bytes(value: Any) -> int:
    """The size of a value's JSON, and 8 bytes for each of its parts, which are objects here."""
    text = orjson.dumps(value)
    return len(text) + 8 * text.count(b",")


class ResponseStore:
    """Responses by tenant and id. Thread-safe.

    A tenant over its limit loses its own oldest responses. If all together are over theirs, the
    largest tenant does.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of a tenant's JSON; of all together four times that."""
        self._max_bytes = max_bytes
        # by tenant and id, the least recently used first
        self._stored: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._sizes = Counter[str]()  # by tenant
        self._lock = threading.RLock()

    def put(self, tenant: str, stored: StoredResponse) -> None:
        """Store a response, unless it alone exceeds the limit."""
        sizes = self._sizes
        with self._lock:
            self.drop(tenant, stored.response["id"])
            self._stored[tenant, stored.response["id"]] = stored
            sizes[tenant] += stored.num_bytes
            while sizes[tenant] > self._max_bytes:
                self._drop_oldest(tenant)
            while sizes.total() > 4 * self._max_bytes:
                self._drop_oldest(max(sizes, key=sizes.__getitem__))

    def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response, unless it was dropped."""
        with self._lock:
            stored = self._stored.get((tenant, response_id))
            if stored is not None:
                self._stored.move_to_end((tenant, response_id))
            return stored

    def drop(self, tenant: str, response_id: str) -> None:
        with self._lock:
            stored = self._stored.pop((tenant, response_id), None)
            if stored is not None:
                self._sizes -= Counter({tenant: stored.num_bytes})

    def _drop_oldest(self, tenant: str) -> None:
        self.drop(*next(name for name in self._stored if name[0] == tenant))


def _store_of(http: HttpRequest) -> ResponseStore:
    store: ResponseStore = http.app.state.responses
    return store


@routes.post(
    "/v1/responses",
    "/responses",
    answer="`response`, with `output`, a list of items; with `stream` events",
)
async def create_response(http: HttpRequest, body: ResponsesBody) -> Response:
    """Answer a text or items, optionally continuing a stored response."""
    store, tenant = _store_of(http), caller_of(http.scope).tenant
    chat, stored = await _read(http, body)

    def keep(response: dict[str, Any]) -> None:
        if body.store:
            store.put(tenant, stored(response))

    return await answer_chat(http, lambda: chat, "resp_", partial(ResponsesDialect, body, keep))


@routes.post("/v1/responses/input_tokens", "/responses/input_tokens", answer="`input_tokens`")
async def count_response_tokens(http: HttpRequest, body: ResponsesBody) -> dict[str, Any]:
    """Count the tokens of the prompt that a response would answer."""
    chat, _ = await _read(http, body)
    number = await count_chat_tokens(http, lambda: chat)
    return {"object": "response.input_tokens", "input_tokens": number}


@routes.get("/v1/responses/{response_id}", "/responses/{response_id}", answer="the response")
async def get_response(http: HttpRequest) -> dict[str, Any]:
    """Return a stored response."""
    return _stored(http).response


@routes.delete("/v1/responses/{response_id}", "/responses/{response_id}", answer="`deleted`: true")
async def delete_response(http: HttpRequest) -> dict[str, Any]:
    """Forget a stored response."""
    stored = _stored(http)
    response_id = stored.response["id"]
    _store_of(http).drop(caller_of(http.scope).tenant, response_id)
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
        chat = chat_body(body, history)
        given = body.input
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        size += json_bytes(items)
        told = body.instructions, body.metadata, body.text, body.tools
        # a short response is some 8 KiB of objects
        rest = 8192 + json_bytes([*told, body.tool_choice, body.reasoning])

        def stored(response: dict[str, Any]) -> StoredResponse:
            output = response["output"]
            num_bytes = size + len(orjson.dumps(output))
            return StoredResponse(response, [*history, *items, *output], num_bytes, rest)

        return chat, stored

    return await service_of(http).prompt_threads.run(read, caller_of(http.scope).tenant)


def _before(http: HttpRequest, body: ResponsesBody) -> StoredResponse | None:
    """The stored response that the body continues."""
    if body.previous_response_id is None:
        return None
    tenant = caller_of(http.scope).tenant
    before = _store_of(http).get(tenant, body.previous_response_id)
    if before is None:
        raise RequestError(
            f"{UNKNOWN_RESPONSE} {shorten(body.previous_response_id)} not found: it was not "
            "stored, was deleted, or made room for newer ones; send the conversation as input"
        )
    return before


def _stored(http: HttpRequest) -> StoredResponse:
    response_id = http.path_params["response_id"]
    stored = _store_of(http).get(caller_of(http.scope).tenant, response_id)
    if stored is None:
        raise ApiError(404, f"Response with id {shorten(response_id)} not found")
    return stored
