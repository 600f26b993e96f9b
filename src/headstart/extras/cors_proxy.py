"""GET and POST /cors-proxy: passes a page's request to any address (`--ui-mcp-proxy`).

For pages that use MCP servers which refuse other origins. Only headers that the client marked are
passed on, so that no key and no cookie leaves by accident. A browser must send such a header, or
that of our page: links, forms and images of other sites can send neither, and their scripts only
after a preflight request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx2
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from headstart.server.body import Body
from headstart.server.errors import INERT, ApiError, shorten
from headstart.server.extra_routes import Extra
from headstart.server.routing import Routes
from headstart.server.threads import unless_left

routes = Routes()

PREFIX = "x-llama-server-proxy-header-"  # of a header that is passed on without it
OUR_PAGE = "x-headstart-page"  # sent by web/js/api.js


class CorsProxy(Extra):
    """The proxy of one app."""

    served = routes
    risks = ("the proxy for pages",)


@routes.get("/cors-proxy", answer="what the address of `url` answers")
async def proxy_get(http: HttpRequest) -> Response:
    """Pass a GET on."""
    return await _pass_on(http)


@routes.post("/cors-proxy", body=Body, answer="what the address of `url` answers")
async def proxy_post(http: HttpRequest) -> Response:
    """Pass a POST on, with its body."""
    return await _pass_on(http)


async def _pass_on(http: HttpRequest) -> Response:
    # no link, form or image of a page can have a browser leave out all of these
    is_browser = http.headers.get("user-agent", "").startswith("Mozilla/") or any(
        name.startswith("sec-fetch-") or name in ("origin", "referer", "cookie")
        for name in http.headers
    )
    is_marked = any(name == OUR_PAGE or name.startswith(PREFIX) for name in http.headers)
    if is_browser and not is_marked:
        raise ApiError(403, f"send a header {PREFIX}NAME, or {OUR_PAGE}: 1, which no link can")
    url = _checked(http.query_params.get("url", ""))
    body = await http.body()
    headers = {
        name[len(PREFIX) :]: value
        for name, value in http.headers.items()
        if name.startswith(PREFIX) and name != PREFIX
    }
    try:
        request = httpx2.Request(http.method, url, headers=headers, content=body)
    except (httpx2.InvalidURL, ValueError) as error:
        raise ApiError(400, f"{shorten(url)} cannot be asked: {error}") from error
    client = httpx2.AsyncClient(timeout=600.0, trust_env=False)  # s of silence
    try:
        answer = await unless_left(http.receive, client.send(request, stream=True))
    except httpx2.HTTPError as error:
        await client.aclose()
        raise ApiError(502, f"{shorten(url)} cannot be reached: {error}") from error
    except BaseException:
        await client.aclose()
        raise
    # headers of the incoming connection, those we set ourselves, or about our origin
    left_out = (
        "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "server",
        "date", "proxy-authenticate", "set-cookie", "content-length", "content-security-policy",
        "x-content-type-options", "content-disposition", "clear-site-data",
        "service-worker-allowed",
    )  # fmt: skip
    passed = {
        name: value
        for name, value in answer.headers.items()
        if name not in left_out and not name.startswith("access-control-")
    }
    passed |= {"content-disposition": "attachment"} | INERT
    return StreamingResponse(_pieces(client, answer), answer.status_code, passed)


async def _pieces(client: httpx2.AsyncClient, answer: httpx2.Response) -> AsyncIterator[bytes]:
    """The body as it arrives, not decompressed."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()
        await client.aclose()


def _checked(url: str) -> str:
    """The address, if one may be asked.

    Raises:
        ApiError: it is none.
    """
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
        has_password = parts.password is not None
    except ValueError:
        is_web, has_password = False, False
    if not is_web:
        raise ApiError(400, f"url is {shorten(url)} but must be an http or https address")
    if has_password:
        raise ApiError(400, f"url holds a password; send it in {PREFIX}authorization")
    return url
