"""Checks every request before its route: website, API key, readiness, size of the body.

Plain ASGI, so that streams are not buffered and large bodies are not read.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.config import ServerConfig
from headstart.server import errors, extra_routes
from headstart.server.errors import INERT, ApiError, error_response
from headstart.server.extra_routes import Extra
from headstart.server.page import POLICY, page, page_files
from headstart.server.routing import prefixed
from headstart.server.websites import ANY, WebsitePolicy
from headstart.structures import tenants
from headstart.structures.tenants import Caller, counted, may_take
from headstart.types.errors import CapacityError, ConfigError, QuotaError

HEALTH = ("/health", "/v1/health")
MAX_BODY_BYTES = 1 << 30  # total of requests being answered; half of it for one of several tenants


def install(
    app: Starlette,
    config: ServerConfig,
    extras: Sequence[Extra],
    why_not_ready: Callable[[], str | None],
) -> None:
    """Add the middleware of all our servers.

    Raises:
        ConfigError: the API key file, `--path` or something in `extras` cannot be used.
    """
    app.router.redirect_slashes = False
    app.add_middleware(Guard, config=config, why_not_ready=why_not_ready)
    policy = POLICY if config.path is None else None  # pages of --path have their own
    app.add_middleware(page, files=page_files(config), policy=policy)
    extra_routes.install(extras, app)
    if config.api_prefix:
        app.add_middleware(prefixed, prefix=config.api_prefix.rstrip("/"))
    errors.install(app)


class Guard:
    """ASGI middleware in front of all routes."""

    def __init__(
        self, app: ASGIApp, *, config: ServerConfig, why_not_ready: Callable[[], str | None]
    ) -> None:
        self._app = app
        self._keys = load_keys(config)
        self._websites = WebsitePolicy(config, has_keys=bool(self._keys))
        self._config = config
        self._why_not_ready = why_not_ready
        self._running: Counter[str] = Counter()  # requests by tenant
        self._body_bytes = Counter[str]()  # bytes of their bodies
        self._max_running = config.max_connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        send = _with_headers(send, self._websites.reader(headers))
        try:
            if scope["path"] not in HEALTH:
                self._websites.check(scope["method"], scope["path"], headers)
            if scope["method"] == "OPTIONS":
                await self._preflight(headers)(scope, receive, send)
                return
            caller = scope["headstart.caller"] = self._caller(scope["path"], headers)
            self._admit(scope, caller)
        except (ApiError, CapacityError) as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        with (
            counted(self._running, caller.tenant),
            self._limited(receive, headers, caller.tenant) as limited,
        ):
            await self._app(scope, limited, send)

    def _admit(self, scope: Scope, caller: Caller) -> None:
        """Check readiness, and keep connections free for other tenants, whose requests could not
        even be read.
        """
        if scope["path"] in HEALTH:
            return
        if reason := self._why_not_ready():
            raise CapacityError(reason)
        if caller.has_tenants and not may_take(self._running, caller.tenant, self._max_running):
            scope["app"].state.refusals["requests"] += 1
            raise QuotaError(
                "requests",
                f"{self._running[caller.tenant]} requests of yours are being answered, and of "
                f"--max-connections {self._max_running} as many must stay free for other "
                "tenants; try again when one has ended",
            )

    def _preflight(self, headers: Headers) -> Response:
        """Answer a browser's preflight request, which has no key."""
        allowed = self._config.cors_headers
        if allowed == ANY:  # browsers exclude Authorization from *
            allowed = headers.get("access-control-request-headers", ANY)
        return Response(
            headers={
                "Access-Control-Allow-Credentials": str(self._config.cors_credentials).lower(),
                "Access-Control-Allow-Methods": self._config.cors_methods,
                "Access-Control-Allow-Headers": allowed,
            }
        )

    def _caller(self, path: str, headers: Headers) -> Caller:
        """Who sent the request; health checks need no key."""
        key = self._matching(headers)
        if path in HEALTH or not self._keys:
            return Caller(is_trusted=not self._keys or key is not None)
        if key is None:
            raise ApiError(
                401, "Invalid API Key: send one as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'"
            )
        header = self._config.tenant_header
        name = headers.get(header, "") if header else ""
        tenant = tenants.namespace_of_tenant(name) if header else tenants.namespace_of_key(key)
        return Caller(tenant, is_trusted=True, has_tenants=len(self._keys) > 1 or bool(name))

    def _matching(self, headers: Headers) -> bytes | None:
        value = headers.get("authorization") or headers.get("x-api-key") or ""
        scheme, space, rest = value.partition(" ")
        text = (rest if space and scheme.lower() == "bearer" else value).strip()
        offered = text.encode("latin-1"), text.encode()  # clients use either encoding
        matches = [key for key in self._keys for one in offered if hmac.compare_digest(key, one)]
        return matches[0] if matches else None

    @contextmanager
    def _limited(self, receive: Receive, headers: Headers, tenant: str) -> Iterator[Receive]:
        """Count the body's bytes while reading; beyond the limit drop the rest and raise 413, or
        503 if all bodies in memory would take too much.
        """
        limit, num_bytes, held = self._config.max_body_mb * 2**20, 0, self._body_bytes
        most = max(MAX_BODY_BYTES, 8 * limit)
        if len(self._keys) < 2 and not self._config.tenant_header:
            most *= 2  # because `may_take` grants half
        is_declared = int(headers.get("content-length") or 0) > limit

        async def received() -> Message:
            nonlocal num_bytes
            # with Expect the client waits for a reply before it sends the body
            message: Message = {} if is_declared and headers.get("expect") else await receive()
            size = len(message.get("body", b""))
            num_bytes, held[tenant] = num_bytes + size, held[tenant] + size
            if num_bytes <= limit and not is_declared:
                if size and not may_take(held, tenant, most):
                    raise CapacityError(
                        f"the bodies of {self._running.total()} requests take "
                        f"{held.total() >> 20} MiB; try again when some are answered"
                    )
                return message
            # read a somewhat larger body anyway, so that the client sees the 413
            num_read = num_bytes
            while message.get("more_body") and num_read <= 4 * limit:
                message = await receive()
                num_read += len(message.get("body", b""))
            raise ApiError(
                413, f"the body is larger than {limit >> 20} MiB; start with a larger --max-body-mb"
            )

        try:
            yield received
        finally:
            held[tenant] -= num_bytes
            if not held[tenant]:
                del held[tenant]


@cache  # a pipe can be read only once
def load_keys(config: ServerConfig) -> tuple[bytes, ...]:
    """API keys of the configuration; without any, none is required.

    Raises:
        ConfigError: the key file cannot be read or holds no key.
    """
    keys: Sequence[str] = (config.api_key or "").split(",")
    if config.api_key_file:
        try:
            lines = Path(config.api_key_file).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--api-key-file {config.api_key_file} cannot be read: {error}"
            ) from error
        lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not lines:
            raise ConfigError(
                f"--api-key-file {config.api_key_file} holds no key; put one on each line"
            )
        keys = [*keys, *lines]
    return tuple(key.strip().encode() for key in keys if key.strip())


class _Spelled(bytes):
    """A header name that uvicorn does not convert to lower case."""

    def lower(self) -> bytes:
        return self


def _spelled(name: bytes) -> bytes:
    # uvicorn compares the names of framing headers
    is_framing = name in (b"content-length", b"transfer-encoding", b"connection")
    return name if is_framing else _Spelled(name.title())


def _with_headers(send: Send, reader: str | None) -> Send:
    """Add the headers of INERT, and CORS for `reader`, the page that may read the answer.

    Names have llama-server's case, because some clients compare them case-sensitively.
    """

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in INERT.items():
                headers.setdefault(name, value)
            if reader:
                headers["Access-Control-Allow-Origin"] = reader
                headers.add_vary_header("Origin")
            message["headers"] = [(_spelled(name), value) for name, value in headers.raw]
        await send(message)

    return send_with_headers
