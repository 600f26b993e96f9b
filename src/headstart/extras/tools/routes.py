"""GET and POST /tools: tools that the server runs on its machine (`--tools`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from headstart.config import ServerConfig, ToolsConfig
from headstart.extras.tools.toolbox import Toolbox
from headstart.server import sse
from headstart.server.body import Body, parse_body
from headstart.server.errors import ApiError, error_body, shorten
from headstart.server.extra_routes import Extra
from headstart.server.routing import Routes
from headstart.server.threads import unless_left

routes = Routes()


class ToolBody(Body):
    """A call of a tool."""

    tool: str
    params: dict[str, Any] = Field(default_factory=dict)
    stream: bool = False


class HostedTools(Toolbox, Extra):
    """The tools of one app."""

    served = routes

    def __init__(self, tools: ToolsConfig, environment: Mapping[str, str]) -> None:
        super().__init__(tools)
        named = (
            ("built-in tools", tools.tools),
            ("MCP servers", tools.mcp_servers_config or tools.mcp_servers_json),
        )
        self.risks = tuple(name for name, is_on in named if is_on)

    def applied(self, config: ServerConfig) -> ServerConfig:
        """With API keys, allow only pages of this machine unless --cors-origins names others.

        Without keys only the server's own page is allowed: others on this machine could run tools.
        """
        has_keys = config.api_key or config.api_key_file
        if config.cors_origins is None and has_keys:
            return replace(config, cors_origins="localhost")
        return config

    def install(self, app: Starlette) -> None:
        """Add the routes, which find these tools in the app's state."""
        super().install(app)
        app.state.toolbox = self


@routes.get("/tools", answer="a list of tools with their definitions")
async def list_tools(http: HttpRequest) -> list[dict[str, Any]]:
    """List the tools, in the form that requests for answers take them."""
    tools = await http.app.state.toolbox.tools()
    return [tool.describe() for tool in tools.values()]


@routes.post("/tools", body=ToolBody, answer="what the tool says, or `error`; events if streamed")
async def call_tool(http: HttpRequest) -> Response | dict[str, Any]:
    """Run a tool."""
    toolbox: Toolbox = http.app.state.toolbox
    body = await asyncio.to_thread(parse_body, await http.body(), ToolBody)
    tool = (await toolbox.tools()).get(body.tool)
    if tool is None:
        raise ApiError(404, f"there is no tool {shorten(body.tool)}; GET /tools lists them")
    own = tool.kind == "server"
    # where a call works is chosen by the client, never by the model
    reserved = ("cwd", "runtime", "resp_type") if own else ()
    arguments = {name: value for name, value in body.params.items() if name not in reserved}
    call = partial(
        toolbox.call,
        tool,
        arguments,
        folder=http.headers.get("x-tool-cwd", ""),
        runtime=http.headers.get("x-tool-runtime", ""),
        wants_base64=http.headers.get("x-resp-type", "") == "base64",
    )
    if body.stream:
        if not tool.can_stream:
            raise ApiError(400, f"the tool {tool.name} cannot be streamed; leave out stream")
        return StreamingResponse(_stream(call), headers=sse.HEADERS, media_type="text/event-stream")
    return await unless_left(http.receive, call())


async def _stream(start: Callable[..., Awaitable[dict[str, Any]]]) -> AsyncIterator[bytes]:
    """Stream the output of a tool, then how it ended."""
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    call = asyncio.ensure_future(start(on_output=pieces.put_nowait))
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
