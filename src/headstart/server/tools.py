"""GET and POST /tools: tools that the server runs on its machine, where they were switched on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from headstart.config import ServerConfig, ToolsConfig
from headstart.extras.tools.switches import risks, runs_tools
from headstart.server import sse
from headstart.server.body import Body, parse_body
from headstart.server.errors import CLIENT_GONE, ApiError, error_body, shorten
from headstart.server.routing import Routes
from headstart.server.threads import ClientGoneError, unless_left

if TYPE_CHECKING:
    from headstart.extras.tools.tool import Tool
    from headstart.extras.tools.toolbox import CallPlace, Toolbox

log = logging.getLogger(__name__)
routes = Routes()

HERE_ONLY = ("127.0.0.1", "::1", "localhost")


class ToolBody(Body):
    """A call of a tool."""

    tool: str
    params: dict[str, Any] = Field(default_factory=dict)
    stream: bool = False


@dataclass(slots=True)
class HostedTools:
    """What one app runs for clients.

    Raises:
        ConfigError: what was configured cannot be.
    """

    config: ToolsConfig
    toolbox: Toolbox | None = None

    def __post_init__(self) -> None:
        if runs_tools(self.config):
            from headstart.extras.tools.toolbox import (
                Toolbox,  # a server without tools starts sooner
            )

            self.toolbox = Toolbox(self.config)

    @asynccontextmanager
    async def running(self, server: ServerConfig) -> AsyncIterator[None]:
        """Runs MCP servers and containers meanwhile, and says what is open."""
        self._warn(server)
        if self.toolbox is not None:
            self.toolbox.start()
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """End what runs; closing twice is harmless."""
        if self.toolbox is not None:
            await self.toolbox.close()

    def _warn(self, server: ServerConfig) -> None:
        found = risks(self.config)
        if not found:
            return
        hosts = [host.strip() for host in server.host.split(",")]
        is_open = not all(host in HERE_ONLY or host.endswith(".sock") for host in hosts)
        has_key = bool(server.api_key or server.api_key_file)
        log.warning(
            "security: %s on. Whoever may use this server acts on this machine as its user%s",
            ", ".join(found) + (" are" if len(found) > 1 else " is"),
            "; it listens beyond this machine WITHOUT an API key: set --api-key, or --host "
            "127.0.0.1"
            if is_open and not has_key
            else "",
        )


def install(app: Starlette, config: ToolsConfig) -> HostedTools:
    """Give the app's routes what they run.

    Raises:
        ConfigError: as of `HostedTools`.
    """
    app.state.tools = HostedTools(config)
    return hosted(app)


def hosted(app: Starlette) -> HostedTools:
    """What the app runs for clients."""
    tools = app.state.tools
    assert isinstance(tools, HostedTools)
    return tools


@routes.get("/tools", answer="a list of tools with their definitions")
async def list_tools(http: HttpRequest) -> Response:
    """List the tools, in the form that requests for answers take them."""
    tools = await _toolbox(http).tools()
    return _json([tool.info.describe() for tool in tools.values()])


@routes.post("/tools", body=ToolBody, answer="what the tool says, or `error`; events if streamed")
async def call_tool(http: HttpRequest) -> Response:
    """Run a tool."""
    toolbox = _toolbox(http)
    try:
        data = await http.body()
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    body = await asyncio.to_thread(parse_body, data, ToolBody)
    tool = (await toolbox.tools()).get(body.tool)
    if tool is None:
        raise ApiError(404, f"there is no tool {shorten(body.tool)}; GET /tools lists them")
    own = tool.info.kind == "server"
    # where a call works is the client's choice, never the model's
    reserved = ("cwd", "runtime", "resp_type") if own else ()
    arguments = {name: value for name, value in body.params.items() if name not in reserved}
    from headstart.extras.tools.toolbox import CallPlace

    place = CallPlace(
        folder=http.headers.get("x-tool-cwd", ""),
        runtime=http.headers.get("x-tool-runtime", ""),
        wants_base64=http.headers.get("x-resp-type", "") == "base64",
    )
    if body.stream:
        if not tool.info.can_stream:
            raise ApiError(400, f"the tool {tool.info.name} cannot be streamed; leave out stream")
        stream = _stream(toolbox, tool, arguments, place)
        return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")
    try:
        result = await unless_left(http.receive, toolbox.call(tool, arguments, place))
    except ClientGoneError:
        return Response(status_code=CLIENT_GONE)
    return _json(result)


async def _stream(
    toolbox: Toolbox, tool: Tool, arguments: Mapping[str, Any], place: CallPlace
) -> AsyncIterator[bytes]:
    """What the tool says as it comes, and how it ended."""
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    call = asyncio.ensure_future(toolbox.call(tool, arguments, place, pieces.put_nowait))
    call.add_done_callback(lambda _: pieces.put_nowait(None))
    try:
        while (piece := await pieces.get()) is not None:
            if piece:
                yield sse.event({"chunk": piece})
        yield sse.event({"done": True} | _failure(call))
    finally:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


def _failure(call: asyncio.Future[dict[str, Any]]) -> dict[str, str]:
    error = call.exception()
    if isinstance(error, Exception):
        return {"error": error_body(error)["error"]["message"]}
    return {key: text for key, text in call.result().items() if key == "error"}


def _toolbox(http: HttpRequest) -> Toolbox:
    toolbox = hosted(http.app).toolbox
    if toolbox is None:
        raise ApiError(
            403,
            "this server runs no tools; start it with --tools or --mcp-servers-config",
            type="feature_disabled",
        )
    return toolbox


def _json(data: Any) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
