"""All tools of a server: the chosen built-in ones, and those of its MCP servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from headstart.config import ToolsConfig
from headstart.extras.tools.files import edit_file, read_file, write_file
from headstart.extras.tools.machine import machine_of
from headstart.extras.tools.mcp_config import read_mcp_servers
from headstart.extras.tools.runtime import Runtime
from headstart.extras.tools.search import file_glob_search, grep_search
from headstart.extras.tools.shell import exec_shell_command, get_info
from headstart.extras.tools.tool import Tool, ToolError, ToolInvocation
from headstart.types.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    from headstart.extras.tools.mcp_servers import McpServer

log = logging.getLogger(__name__)

T = TypeVar("T")
BUILT_IN = (
    read_file,
    file_glob_search,
    grep_search,
    exec_shell_command,
    write_file,
    edit_file,
    get_info,
)


class Toolbox:
    """The tools of GET and POST /tools. Belongs to one event loop.

    Raises:
        ConfigError: an unknown tool, runtime or MCP server.
    """

    def __init__(self, config: ToolsConfig) -> None:
        self._tools = {tool.name: tool for tool in _built_in(config)}
        self._servers = _mcp_servers(config)
        self._runtime = Runtime(config.tools_runtime or "")
        self._running: set[asyncio.Future[Any]] = set()
        self._discovery: asyncio.Task[None] | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Ask the MCP servers for their tools, without waiting for the answers."""
        self._discovery = asyncio.create_task(self._discover())

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
        try:
            runtime = runtime or await self._unless_closed(self._runtime.name())
            machine = machine_of(runtime, folder)
            call = ToolInvocation(arguments, machine, wants_base64, on_output)
            return await self._unless_closed(tool.run(call))
        except ToolError as error:
            return {"error": str(error)}

    async def close(self) -> None:
        """End running calls and all programs."""
        self._is_closed = True
        waiting = [*self._running, *([self._discovery] if self._discovery else ())]
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(self._runtime.close(), *(server.close() for server in self._servers))

    async def _unless_closed(self, work: Awaitable[T]) -> T:
        """Await work that is cancelled when the toolbox closes."""
        running = asyncio.ensure_future(work)
        self._running.add(running)
        try:
            return await running
        except asyncio.CancelledError:
            if self._is_closed:
                raise CapacityError("the server is shutting down") from None
            raise
        finally:
            running.cancel()
            self._running.discard(running)

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
