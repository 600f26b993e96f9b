"""GET and POST /cors-proxy: passes a page's request on to any address (`--ui-mcp-proxy`).

For pages that talk to MCP servers which answer no page of another origin. Only headers that the
client marked are passed on, so that no key and no cookie leaves by accident. A request needs such a
header, or that of our page: links, forms and images of other sites can send neither, and their
scripts only after a preflight request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from headstart.gateway.proxy import HOP_BY_HOP, Backend, ProxiedAnswer, ProxiedRequest, Proxy
from headstart.server.body import Body
from headstart.server.errors import INERT, ApiError, shorten
from headstart.server.extras import Extra
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
    if not any(name == OUR_PAGE or name.startswith(PREFIX) for name in http.headers):
        raise ApiError(403, f"send a header {PREFIX}NAME, or {OUR_PAGE}: 1, which no link can")
    url = _checked(http.query_params.get("url", ""))
    ours = HOP_BY_HOP | {b"", b"host", b"content-length"}
    marked = [(n[len(PREFIX) :], v) for n, v in http.headers.items() if n.startswith(PREFIX)]
    headers = {name: value for name, value in marked if name.encode() not in ours}
    origin = f"{url.scheme}://{url.netloc.decode()}"
    backend = Backend(name=shorten(str(url)), url=origin, headers=headers)
    request = ProxiedRequest(http.method, url.raw_path.decode(), (), await http.body())
    proxy = Proxy(600.0)  # s of silence
    opening = proxy.open(backend, request, wants_first_piece=False)
    answer = await unless_left(http.receive, opening)
    # what we say ourselves, or is about our origin
    left_out = (
        b"content-length", b"content-security-policy", b"x-content-type-options",
        b"content-disposition", b"clear-site-data", b"service-worker-allowed",
    )  # fmt: skip
    own = {"content-disposition": "attachment"} | INERT
    response = StreamingResponse(_pieces(proxy, answer), answer.status, own)
    response.raw_headers += [pair for pair in answer.headers if pair[0] not in left_out]
    return response


async def _pieces(proxy: Proxy, answer: ProxiedAnswer) -> AsyncIterator[bytes]:
    """The body as it arrives, not decompressed."""
    try:
        async for piece in answer.pieces():
            yield piece
    finally:
        answer.close()
        proxy.close()


def _checked(url: str) -> httpx2.URL:
    """The address, if one may be asked.

    Raises:
        ApiError: it is none.
    """
    try:
        found = httpx2.URL(url)
    except httpx2.InvalidURL:
        found = httpx2.URL("")
    is_web = found.scheme in ("http", "https") and found.host and "%" not in found.host
    if not is_web:
        raise ApiError(400, f"url is {shorten(url)} but must be an http or https address")
    if b":" in found.userinfo:
        raise ApiError(400, f"url holds a password; send it in {PREFIX}authorization")
    return found
