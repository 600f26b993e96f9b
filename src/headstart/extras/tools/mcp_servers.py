"""All MCP servers: which tools they offer, and a session with each, begun anew when it ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headstart.extras.tools.mcp_config import McpServerConfig
from headstart.extras.tools.mcp_session import McpSession
from headstart.extras.tools.tool import Tool, ToolError, ToolInfo, ToolInvocation

log = logging.getLogger(__name__)

DISCOVERY_SECONDS = 10.0  # for a server to say at the start what it offers
RETRY_SECONDS = 5.0  # after a start that failed


class McpServer:
    """One server, whether it runs or not."""

    def __init__(
        self, config: McpServerConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self._clock = clock
        self._opening = asyncio.Lock()
        self._session: McpSession | None = None
        self._failure = ""
        self._failed_at = float("-inf")

    async def discover(self) -> list[McpTool]:
        """The tools that it offers; none, with a word in the log, where it does not work."""
        try:
            async with asyncio.timeout(DISCOVERY_SECONDS):
                listed = await (await self._open()).list_tools()
        except (ToolError, TimeoutError) as error:
            reason = str(error) or f"no answer within {DISCOVERY_SECONDS:.0f} seconds"
            log.warning("the tools of the MCP server %s are left out: %s", self.config.name, reason)
            return []
        log.info("the MCP server %s offers %d tools", self.config.name, len(listed))
        return [McpTool(self, one) for one in listed]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """What a tool answers.

        Raises:
            ToolError: the tool, or the server, failed.
        """
        return await (await self._open()).call(tool, arguments)

    async def close(self) -> None:
        """End the server."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _open(self) -> McpSession:
        async with self._opening:
            if self._session is not None and self._session.is_alive:
                return self._session
            await self.close()
            if self._clock() - self._failed_at < RETRY_SECONDS:
                raise ToolError(self._failure)
            try:
                self._session = await McpSession.open(self.config)
            except ToolError as error:
                self._failure, self._failed_at = str(error), self._clock()
                raise
            return self._session


class McpTool(Tool):
    """A tool of an MCP server, under the server's name and its own."""

    def __init__(self, server: McpServer, listed: Mapping[str, Any]) -> None:
        self._server = server
        self._name = listed["name"]
        name = f"{server.config.name}_{self._name}"
        schema = listed.get("inputSchema")
        self.info = ToolInfo(
            name=name,
            title=name,
            description=str(listed.get("description") or ""),
            parameters=schema if isinstance(schema, dict) else {},
            kind="mcp",
            uses_folder=False,
        )

    async def run(self, call: ToolInvocation) -> dict[str, Any]:
        """Ask the server."""
        return {"plain_text_response": await self._server.call(self._name, call.arguments)}


async def discover_all(servers: Sequence[McpServer]) -> list[McpTool]:
    """The tools of all servers, asked at the same time."""
    found = await asyncio.gather(*(server.discover() for server in servers))
    return [tool for tools in found for tool in tools]
