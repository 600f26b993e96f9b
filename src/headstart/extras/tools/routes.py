"""GET and POST /tools: tools that the server runs on its machine (`--tools`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from headstart.config import ServerConfig, ToolsConfig
from headstart.extras.tools.files import edit_file, read_file, write_file
from headstart.extras.tools.machine import machine_of
from headstart.extras.tools.mcp_config import read_mcp_servers
from headstart.extras.tools.runtime import Runtime
from headstart.extras.tools.search import file_glob_search, grep_search
from headstart.extras.tools.shell import exec_shell_command, get_info
from headstart.extras.tools.tool import Tool, ToolError, ToolInvocation
from headstart.server import sse
from headstart.server.body import Body
from headstart.server.errors import ApiError, error_body, shorten
from headstart.server.extra_routes import Extra
from headstart.server.routing import Routes
from headstart.server.threads import unless_left
from headstart.types.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    from headstart.extras.tools.mcp_servers import McpServer

log = logging.getLogger(__name__)
routes = Routes()

BUILT_IN = (
    read_file,
    file_glob_search,
    grep_search,
    exec_shell_command,
    write_file,
    edit_file,
    get_info,
)


class ToolBody(Body):
    """A call of a tool."""

    tool: str
    params: dict[str, Any] = Field(default_factory=dict)
    stream: bool = False


class HostedTools(Extra):
    """The tools of one app: the chosen built-in ones, and those of its MCP servers. Belongs to one
    event loop.

    Raises:
        ConfigError: an unknown tool, runtime or MCP server.
    """

    served = routes

    def __init__(self, config: ToolsConfig, environment: Mapping[str, str]) -> None:
        named = (
            ("built-in tools", config.tools),
            ("MCP servers", config.mcp_servers_config or config.mcp_servers_json),
        )
        self.risks = tuple(name for name, is_on in named if is_on)
        self._tools = {tool.name: tool for tool in _built_in(config)}
        self._servers = _mcp_servers(config)
        self._runtime = Runtime(config.tools_runtime or "")
        self._running: set[asyncio.Future[Any]] = set()
        self._discovery: asyncio.Task[None] | None = None
        self._is_closed = False

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

    async def start(self) -> None:
        """Ask the MCP servers for their tools, without waiting for the answers."""
        self._discovery = asyncio.create_task(self._discover())
        self._running.add(self._discovery)

    async def tools(self) -> Mapping[str, Tool]:
        """All tools by name, once the MCP servers have answered."""
        if self._discovery is not None:
            await asyncio.shield(self._discovery)
        return self._tools

    async def call(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        on_output: Callable[[str], None] | None = None,
        *,
        folder: str = "",
        runtime: str = "",
        wants_base64: bool = False,
    ) -> dict[str, Any]:
        """Run a tool; its own failures are returned as `error`.

        Args:
            folder, runtime: where it works; default: the server's settings.

        Raises:
            HeadstartError: the folder or runtime cannot be used.
            CapacityError: the server is ending.
        """

        async def run() -> dict[str, Any]:
            machine = machine_of(runtime or await self._runtime.name(), folder)
            return await tool.run(ToolInvocation(arguments, machine, wants_base64, on_output))

        running = asyncio.ensure_future(run())
        self._running.add(running)
        try:
            return await running
        except ToolError as error:
            return {"error": str(error)}
        except asyncio.CancelledError:
            if self._is_closed:
                raise CapacityError("the server is shutting down") from None
            raise
        finally:
            running.cancel()
            self._running.discard(running)

    async def close(self) -> None:
        """End running calls and all programs."""
        self._is_closed = True
        for one in self._running:
            one.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(self._runtime.close(), *(server.close() for server in self._servers))

    async def _discover(self) -> None:
        found = await asyncio.gather(*(server.discover() for server in self._servers))
        for tool in chain.from_iterable(found):
            if tool.name in self._tools:
                log.warning("there are two tools %s; the second is left out", tool.name)
            self._tools.setdefault(tool.name, tool)


def _mcp_servers(config: ToolsConfig) -> list[McpServer]:
    if not (configs := read_mcp_servers(config)):
        return []
    try:
        from headstart.extras.tools.mcp_servers import McpServer
    except ImportError as error:
        raise ConfigError(
            f"MCP servers need the package mcp ({error}); install it with: "
            "pip install 'headstart[tools]'"
        ) from error
    return [McpServer(name, one) for name, one in configs.items()]


def _built_in(config: ToolsConfig) -> list[Tool]:
    """The built-in tools of these names; `all` selects every one."""
    names = {name.strip() for name in (config.tools or "").split(",")} - {""}
    known = [tool.name for tool in BUILT_IN]
    for name in sorted(names.difference(known, {"all"})):
        raise ConfigError(
            f"--tools names {name!r}, which there is not; use {', '.join(known)} or all"
        )
    return [tool for tool in BUILT_IN if "all" in names or tool.name in names]


@routes.get("/tools", answer="a list of tools with their definitions")
async def list_tools(http: HttpRequest) -> list[dict[str, Any]]:
    """List the tools, in the form that requests for answers take them."""
    tools = await http.app.state.toolbox.tools()
    return [tool.describe() for tool in tools.values()]


@routes.post("/tools", answer="what the tool says, or `error`; events if streamed")
async def call_tool(http: HttpRequest, body: ToolBody) -> Response | dict[str, Any]:
    """Run a tool."""
    toolbox: HostedTools = http.app.state.toolbox
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
