"""Vertex AI's prediction protocol, where AIP_MODE is PREDICTION: one POST with several requests.

Each instance names the route that answers it in `@requestFormat`: a path, or the words of one as
`chatCompletions`. Google's description of the variables:
https://docs.cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.config import ServerConfig, ToolsConfig
from headstart.server.body import off_loop, read_json
from headstart.server.errors import ApiError, error_body, log_failure, shorten
from headstart.server.extra_routes import Extra
from headstart.server.threads import unless_left
from headstart.types.errors import ConfigError

MAX_INSTANCES = 128
FORMAT = "@requestFormat"
# what an instance may name, a path or the words of one
PATHS = {
    "chatCompletions": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "messagesCountTokens": "/v1/messages/count_tokens",
    "chatCompletionsInputTokens": "/v1/chat/completions/input_tokens",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "completion": "/completion",
    "embedding": "/embedding",
    "infill": "/infill",
    "tokenize": "/tokenize",
    "detokenize": "/detokenize",
    "applyTemplate": "/apply-template",
}


class Vertex(Extra):
    """Port and routes that Vertex AI expects, from the container's environment."""

    def __init__(self, tools: ToolsConfig, environment: Mapping[str, str]) -> None:
        """Raise a ConfigError if the port is invalid."""
        port = environment.get("AIP_HTTP_PORT") or "8080"
        if not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"AIP_HTTP_PORT is {port!r} but must be from 0 to 65535")
        self._port = int(port)
        self._predict = _path(environment.get("AIP_PREDICT_ROUTE") or "/predict")
        self._health = _path(environment.get("AIP_HEALTH_ROUTE") or "")

    def applied(self, config: ServerConfig) -> ServerConfig:
        """The port that Vertex AI names."""
        return replace(config, port=self._port)

    def install(self, app: Starlette) -> None:
        """Add the route, and /health under the name that Vertex AI uses."""
        taken = [route.path for route in app.router.routes if isinstance(route, Route)]
        if self._predict in (*PATHS.values(), *taken):
            raise ConfigError(f"AIP_PREDICT_ROUTE is {self._predict}, which is another route here")
        app.router.routes.append(Route(self._predict, _predict, methods=["POST"]))
        if self._health:
            app.add_middleware(renamed_health, path=self._health)


def renamed_health(app: ASGIApp, *, path: str) -> ASGIApp:
    """ASGI middleware: /health under the name that Vertex AI uses."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == path:
            scope = {**scope, "path": "/health"}
        await app(scope, receive, send)

    return answer


async def _predict(http: HttpRequest) -> Response:
    """Answer all instances at the same time, in their order."""
    given = await http.body()
    data = await off_loop(http, lambda: read_json(given))
    instances = data.get("instances") if isinstance(data, dict) else None
    if not isinstance(instances, list):
        raise ApiError(400, "the body must have a list named instances")
    if len(instances) > MAX_INSTANCES:
        raise ApiError(400, f"instances has {len(instances)} entries, more than {MAX_INSTANCES}")
    answers = asyncio.gather(*(_answer(http, one) for one in instances))
    predictions = await unless_left(http.receive, answers)
    return Response(orjson.dumps({"predictions": predictions}), media_type="application/json")


async def _answer(http: HttpRequest, instance: Any) -> Any:
    """The answer of an instance's route, or the error."""
    try:
        if not isinstance(instance, dict):
            raise ApiError(400, f"an instance is {shorten(instance)} but must be an object")
        wanted = instance.get(FORMAT)
        path = PATHS.get(wanted, wanted) if isinstance(wanted, str) else ""
        if path not in PATHS.values():
            known = ", ".join(PATHS)
            raise ApiError(400, f"{FORMAT} is {shorten(wanted)} but must be one of {known}")
        body = {key: value for key, value in instance.items() if key != FORMAT}
        if "stream" in body:  # there is one answer for all
            body["stream"] = False
        answer = await _ask(http, path, orjson.dumps(body))
    except Exception as error:  # of one route: the other answers are kept
        log_failure(error)
        return {key: value for key, value in error_body(error).items() if key == "error"}
    with suppress(ValueError):
        return json.loads(answer)
    return answer.decode("utf-8", "replace")


async def _ask(http: HttpRequest, path: str, body: bytes) -> bytes:
    """The body of a route's answer, for the client of the whole request."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    pieces: list[bytes] = []

    async def receive() -> Message:
        return waiting.pop() if waiting else await asyncio.Future()  # `unless_left` watches

    async def send(message: Message) -> None:
        pieces.append(message.get("body", b""))

    left_out = (b"content-length", b"transfer-encoding")
    headers = [pair for pair in http.scope["headers"] if pair[0].lower() not in left_out]
    headers.append((b"content-length", str(len(body)).encode()))
    of_route = ("endpoint", "path_params", "route", "starlette.exception_handlers")
    scope = {name: value for name, value in http.scope.items() if name not in of_route}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    await http.app.router(scope, receive, send)
    return b"".join(pieces)


def _path(text: str) -> str:
    return text if not text or text.startswith("/") else f"/{text}"
