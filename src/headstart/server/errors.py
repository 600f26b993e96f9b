"""Exceptions as JSON: OpenAI's error shape with llama-server's types and codes."""

from __future__ import annotations

import logging
import reprlib
from collections import Counter
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from headstart.types.errors import (
    QUOTAS,
    CapacityError,
    ContextLengthError,
    HeadstartError,
    QuotaError,
    RequestError,
    closest,
)

logger = logging.getLogger(__name__)

# Every error response: status, `type` in the body, and cause. docs/errors.md is generated from it.
ANSWERS = (
    (400, "invalid_request_error", "the body or a field; the message names field, value, limit"),
    (400, "exceed_context_size_error", "the prompt does not fit the context"),
    (
        400,
        "not_supported_error",
        "a field asks for something that this server or its model does not have",
    ),
    (401, "authentication_error", "no API key, or a wrong one"),
    (
        403,
        "permission_error",
        "a host name or web page that `--allowed-hosts`, `--cors-origins` lack; an address other "
        "than the page's that is opened in a browser; a browser's `/cors-proxy` without its header",
    ),
    (403, "feature_disabled", "`/tools` and `/cors-proxy` without the flags that enable them"),
    (404, "not_found_error", "no such path or model"),
    (405, "invalid_request_error", "the path takes another method; `Allow` names it"),
    (408, "invalid_request_error", "the request did not come in time"),
    (413, "invalid_request_error", "the body is larger than `--max-body-mb`"),
    (415, "invalid_request_error", "a browser's body that is neither JSON nor a sound's form"),
    (431, "invalid_request_error", "the head of the request is larger than 64 KiB"),
    (
        429,
        "rate_limit_error",
        "`headstart router`: all backends are busy; retry after `Retry-After`",
    ),
    (
        429,
        "rate_limit_error",
        "this API key has used its share of a resource; the message says which and until when",
    ),
    (
        500,
        "server_error",
        "libllama or the server failed, see its log; an image or a sound for a model that reads "
        "none; a tool for an unknown machine",
    ),
    (501, "not_supported_error", "this server or model cannot do it, such as `/slots` when off"),
    (502, "server_error", "with a router: the model's process ended; try again"),
    (503, "unavailable_error", "loading, restarting, or a full queue; retry after `Retry-After`"),
)
# On every answer except the page's: a browser that opens one runs no script in it.
INERT = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}
# begins OpenAI's message, by which the load balancer knows that another server may have it
UNKNOWN_RESPONSE = "Previous response with id"


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60
_repr.maxlist = _repr.maxdict = 3


def shorten(value: object) -> str:
    """Return a short form of a request's value for an error message."""
    if value is None or isinstance(value, bool):
        return orjson.dumps(value).decode()
    return _repr.repr(value)


class ApiError(HeadstartError):
    """An error with an explicit HTTP status and type."""

    def __init__(self, status: int, message: str, *, type: str = "", retry_after: int = 0) -> None:
        super().__init__(message)
        self.status, self.type, self.retry_after = status, type, retry_after


def not_supported(message: str) -> ApiError:
    """Error for an unsupported field; 400, because it can be omitted."""
    return ApiError(400, message, type="not_supported_error")


def wrong_value(field: str, value: object, wanted: str) -> RequestError:
    """Error for a field whose value has the wrong type or is out of range."""
    return RequestError(f"{field} is {shorten(value)} but must be {wanted}")


def error_body(error: Exception) -> dict[str, Any]:
    """Return `{"error": {"code", "message", "type", ...}}` for any exception."""
    if not isinstance(error, HeadstartError):
        error = HeadstartError("internal error; the server's log has the details")
    kind = error.type or next(kind for status, kind, _ in ANSWERS if status == error.status)
    body: dict[str, Any] = {"code": error.status, "message": str(error), "type": kind}
    if isinstance(error, ContextLengthError):
        body |= {"n_prompt_tokens": error.num_prompt_tokens, "n_ctx": error.context_size}
    return {"error": body}


def error_response(error: Exception, path: str = "") -> Response:
    """Return the HTTP response for an exception, in the form of the API of this path."""
    body = error_body(error)
    status = body["error"]["code"]
    headers = dict(INERT)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    retry_after = error.retry_after if isinstance(error, HeadstartError) else 0
    if retry_after:
        headers["Retry-After"] = str(retry_after)
    shown = orjson.dumps(shaped(body, path))
    return Response(shown, status, headers, media_type="application/json")


def shaped(body: dict[str, Any], path: str) -> dict[str, Any]:
    """An `error_body` in the form of the API of this path."""
    if path.startswith("/api/"):  # Ollama's
        return {"error": body["error"]["message"]}
    return {"type": "error"} | body if path.startswith("/v1/messages") else body


def install(app: Starlette) -> None:
    """Turn exceptions of routes into responses of this form, and count refusals by quota."""
    app.state.refusals = Counter(dict.fromkeys(QUOTAS, 0))
    for kind in (HeadstartError, ClientDisconnect, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)


def log_failure(error: Exception) -> None:
    """Log errors that the client did not cause."""
    if not isinstance(error, ApiError | RequestError | CapacityError | ClientDisconnect):
        logger.error("request failed: %s", error, exc_info=not isinstance(error, HeadstartError))


# a coroutine, because Starlette calls anything else in a thread
async def _answer(request: Request, error: Exception) -> Response:
    path, headers = request.url.path, dict[str, str]()
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nginx's code; never received by the client
    if isinstance(error, HTTPException):  # Starlette's own: unknown path (404), wrong method (405)
        headers |= error.headers or {}
        prefix = request.scope.get("headstart.prefix", "")
        shown = prefix + path
        paths = [prefix + one.path for one in request.app.routes if isinstance(one, Route)]
        near = closest(shown[:100], paths)  # comparing a long text takes long
        words = {
            404: f"there is no {shown} here{near} ({prefix}/openapi.json lists the paths)",
            405: f"{shown} does not take {request.method}, only {headers.get('Allow', '')}",
        }
        error = ApiError(error.status_code, words[error.status_code])
    if isinstance(error, HeadstartError):  # Starlette raises others again, and they are logged
        log_failure(error)
    if isinstance(error, QuotaError):
        request.app.state.refusals[error.quota] += 1
    response = error_response(error, path)
    response.headers.update(headers)
    return response
