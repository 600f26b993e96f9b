"""Which model writes the stream of a conversation, for /v1/stream and /v1/streams/lookup.

A stream is kept by the server of its model (server/kept_streams.py). Until that is loaded, its
request waits here, whether or not its client does.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest

from headstart.server.errors import ApiError
from headstart.server.kept_streams import HEADER

T = TypeVar("T")
Conversation = tuple[str, str]  # tenant and name
MAX_CONVERSATIONS = 4096


def conversation_of(http: HttpRequest) -> Conversation | None:
    """The conversation that a request continues, or asks for; None without one."""
    name = http.headers.get(HEADER)
    if http.scope["path"] == "/v1/stream":
        name = http.query_params.get("conv_id")
    return (http.scope.get("headstart.namespace", ""), name) if name else None


class Streams:
    """Models by conversation, and the requests that wait for theirs."""

    def __init__(self) -> None:
        self._models: OrderedDict[Conversation, str] = OrderedDict()
        self._waiting: dict[Conversation, asyncio.Future[Any]] = {}

    def model_of(self, conversation: Conversation) -> str:
        """The name of its model: the last one, else the one in `conversation::model`."""
        return self._models.get(conversation) or conversation[1].partition("::")[2]

    def models_of(self, tenant: str) -> set[str]:
        """The names of all models with streams of a tenant."""
        return {model for (owner, _), model in self._models.items() if owner == tenant}

    def is_waiting(self, conversation: Conversation) -> bool:
        return conversation in self._waiting

    def stop(self, conversation: Conversation) -> None:
        """End the conversation's request if it waits."""
        if waiting := self._waiting.get(conversation):
            waiting.cancel()

    async def wait(
        self, conversation: Conversation, model: str, work: Coroutine[None, None, T]
    ) -> T:
        """Await the model.

        Raises:
            ApiError: the stream was stopped before.
        """
        self._models[conversation] = model
        self._models.move_to_end(conversation)
        if len(self._models) > MAX_CONVERSATIONS:
            self._models.popitem(last=False)
        self.stop(conversation)
        task = asyncio.ensure_future(work)
        self._waiting[conversation] = task
        try:
            return await task
        except asyncio.CancelledError:
            if not task.cancelled():
                task.cancel()
                raise
            raise ApiError(400, "the request was cancelled while its model was loading") from None
        finally:
            if self._waiting.get(conversation) is task:
                del self._waiting[conversation]
