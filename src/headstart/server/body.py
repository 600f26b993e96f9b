"""Reads bodies of requests, JSON or forms, as objects of pydantic classes, with readable errors.

Limits on sizes keep a request from stalling or ending the server. Each error names the field, its
size, the limit and the remedy.
"""

from __future__ import annotations

import base64
import codecs
import gc
import re
import threading
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Annotated, Any, ClassVar, TypeVar, get_args

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    model_validator,
)
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from headstart.server.errors import shorten
from headstart.server.threads import Threads
from headstart.structures.tenants import caller_of
from headstart.types.errors import RequestError


def _whole(value: Any) -> Any:
    """Accept 40.0 for 40, as JavaScript and some JSON writers send it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# larger JSON numbers are not exact, and orjson cannot write them back
Int = Annotated[int, BeforeValidator(_whole), Field(ge=-(2**53), le=2**53)]
Seed = Annotated[int, BeforeValidator(_whole), Field(ge=-(2**63), lt=2**64)]
Count = Annotated[
    Int, BeforeValidator(lambda value: int(value) if isinstance(value, bool) else value)
]


class Body(BaseModel):
    """A JSON object in which null means absent.

    A class's validator is built with its first body: building all at the start takes 0.1 s.
    """

    asks_model: ClassVar[bool] = False  # it only asks the model: not parsed if the client has left

    model_config = ConfigDict(
        strict=True, extra="ignore", protected_namespaces=(), defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return (
            {key: value for key, value in data.items() if value is not None}
            if isinstance(data, dict)
            else data
        )


MAX_PROMPTS = 256  # answers per call
MAX_INPUTS = 2048  # texts to embed or rank per call, as in OpenAI's API
MAX_FIELDS = 256  # of a body: small JSON can become large objects

HEADER = "x-conversation-id"  # of streamed requests that continue without their client
B = TypeVar("B", bound=Body)
T = TypeVar("T")
Many = Annotated[list[T], FailFast()]  # describing 30,000 wrong entries takes 0.1 s
_parsing, _building = threading.Lock(), threading.Lock()


async def read_body(request: HttpRequest, schema: type[B]) -> B:
    """Parse the body, as JSON unless it says that it is a form; a long one off the event loop.

    Raises:
        RequestError: the body is not JSON in UTF-8 or does not fit the schema.
        CapacityError: too many bodies are queued.
        ClientDisconnect: the client disconnected at once, and its answer is not kept.
    """
    data, kind = await request.body(), request.headers.get("content-type", "")
    if schema.asks_model and HEADER not in request.headers:
        for _ in range(2):  # turns of the event loop, in which a disconnect is noticed
            if await request.is_disconnected():
                raise ClientDisconnect
    return await off_loop(request, lambda: make_body(schema, read_object(data, kind)))


async def off_loop(request: HttpRequest, function: Callable[[], T], tenant: str | None = None) -> T:
    """Return `function()`, computed in a thread if the body of the request is long.

    Args:
        tenant: whose turn it takes; by default the sender's.

    Raises:
        CapacityError: too many bodies are queued.
    """
    if len(await request.body()) <= 1 << 16:  # faster than handing over to a thread
        return function()
    threads: Threads = request.app.state.threads
    tenant = caller_of(request.scope).tenant if tenant is None else tenant
    return await threads.run(lambda: _parse_long(function), tenant)


def _parse_long(parse: Callable[[], T]) -> T:
    """Parse one body at a time, without garbage collection.

    Parsing holds the interpreter's lock and takes memory; looking for cycles, which JSON cannot
    have, would take ten times as long.
    """
    with _parsing:
        gc.disable()
        try:
            return parse()
        finally:
            gc.enable()


def read_object(body: bytes, content_type: str = "") -> dict[str, Any]:
    """The JSON object in a body, or the fields of a form, within the limits of structure.

    Raises:
        RequestError: it is something else, or exceeds the limits.
    """
    kind = r'(?i)multipart/form-data\s*;.*?\bboundary="?([^";\s]+)'
    if form := re.match(kind, content_type):
        return read_form(body, form[1].encode("latin-1"))
    data = read_json(body)
    if not isinstance(data, dict):
        raise RequestError(f"the body must be a JSON object, not {shorten(data)}")
    if body.count(b"[") + body.count(b"{") > 250:
        try:
            orjson.dumps(data)  # has this nesting limit, like templates and schemas
        except TypeError as error:
            raise RequestError(
                "the body is nested deeper than 250 levels; send a flatter one"
            ) from error
    check_length("the body", data, MAX_FIELDS, "fields")
    any_length = (
        "prompt",
        "tokens",
        "content",
        "input",
        "logit_bias",
        "input_prefix",
        "input_suffix",
    )
    for field, value in data.items():
        if field not in any_length and isinstance(value, list):
            check_length(field, value, 32_768)  # entries that are objects or texts
    return data


def read_form(body: bytes, boundary: bytes) -> dict[str, Any]:
    """The texts of a multipart form, and its files in base64. Source: RFC 7578."""
    boundary = b"\r\n--" + boundary
    parts = (b"\r\n" + body).partition(boundary + b"--")[0]
    found, parameter = {}, rb';\s*([\w*]+)\s*=\s*(?:"([^"]*)"|([^;\s]*))'
    for part in parts.split(boundary + b"\r\n", MAX_FIELDS + 1)[1:]:
        head, _, data = part.partition(b"\r\n\r\n")
        line = re.search(rb"(?im)^content-disposition:(.{,2000})", head)
        given = re.findall(parameter, line[1]) if line else ()
        said = {key.lower(): a or b for key, a, b in given}
        if b"name" not in said:
            raise RequestError("a part of the form has no name; send it as curl -F name=value does")
        is_file = b"filename" in said or b"filename*" in said
        value = (base64.b64encode(data) if is_file else data).decode("utf-8", "replace")
        found[said[b"name"].decode("utf-8", "replace")] = value
    check_length("the form", found, MAX_FIELDS, "fields")
    return found


def read_json(body: bytes) -> Any:
    """The JSON value in a body, unless it has too many parts.

    Raises:
        RequestError: it has too many, or is not JSON.
    """
    check_structure(body)
    try:
        return orjson.loads(body.removeprefix(codecs.BOM_UTF8))  # written by PowerShell
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON in UTF-8: {error}") from error


def make_body(schema: type[B], data: dict[str, Any]) -> B:
    """A body with these fields.

    Raises:
        RequestError: they do not fit the schema.
    """
    if not schema.__pydantic_complete__:
        with _building:
            schema.model_rebuild()
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise RequestError(_explain(error, schema)) from error


def _explain(error: ValidationError, schema: type[BaseModel]) -> str:
    """Describe the first wrong field: its name, its value and what is expected."""
    problem = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{field} is required"
    if problem["type"] == "extra_forbidden":
        return f"{field} does not exist; there are {', '.join(_members(schema, problem['loc']))}"
    if problem["type"] == "model_type":
        return f"{field} is {shorten(problem['input'])} but must be an object"
    wanted = re.sub("^(Input|List|String) should ", "", problem["msg"])
    for words, shorter in (  # pydantic's, and JSON's
        ("a valid dictionary", "an object"),
        ("a valid list", "a list"),
        ("a valid string", "a text"),
        ("a valid boolean", "true or false"),
        ("a valid integer", "a whole number"),
        ("a valid number", "a number"),
        ("greater than or equal to", "at least"),
        ("less than or equal to", "at most"),
        (" after validation", ""),
    ):
        wanted = wanted.replace(words, shorter)
    return f"{field} is {shorten(problem['input'])} but must {wanted}"


def _members(schema: type[BaseModel], path: Sequence[object]) -> Iterable[str]:
    """The fields of the object that lacks the last name of a path."""
    for part in path[:-1]:
        hint = schema.model_fields[str(part)].annotation
        classes = (one for one in (hint, *get_args(hint)) if isinstance(one, type))
        schema = next(one for one in classes if issubclass(one, BaseModel))
    return schema.model_fields


def check_structure(body: bytes) -> None:
    """Refuse a body of very many small parts before parsing it.

    Counts bytes, so brackets inside texts count too.

    Raises:
        RequestError: there are too many.
    """
    for what, count, limit in (
        ("texts and keys", (body.count(b'"') - body.count(b'\\"')) // 2, 100_000),
        ("lists and objects", body.count(b"[") + body.count(b"{"), 400_000),
    ):
        if count > limit:
            raise RequestError(
                f"the body holds {count} {what} but at most {limit} are read; send fewer"
            )


def check_length(field: str, value: Sized, limit: int, what: str = "entries") -> None:
    """Raise RequestError if the value is longer than the limit."""
    if len(value) > limit:
        raise RequestError(
            f"{field} holds {len(value)} {what} but at most {limit} are taken; send fewer"
        )


def is_id(value: Any) -> bool:
    """Whether a value of a body is an integer, as token ids are."""
    return isinstance(value, int) and not isinstance(value, bool)
