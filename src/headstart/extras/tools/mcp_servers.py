"""Sessions with MCP servers, through the official SDK (`pip install headstart[tools]`)."""

from __future__ import annotations

import asyncio
import codecs
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from encodings import utf_8
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mcp import ClientSession, MCPError, StdioServerParameters, stdio_client
from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT, Implementation, PaginatedRequestParams
from mcp.types import Tool as ListedTool

from headstart import __version__
from headstart.extras.tools.command import shared_environment
from headstart.extras.tools.mcp_config import McpServerConfig
from headstart.extras.tools.tool import Tool, ToolError, ToolInvocation

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream

log = logging.getLogger(__name__)
# it logs a traceback for each line of a server that is not JSON
logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)

T = TypeVar("T")
MAX_LINE_BYTES = 8 << 20  # of a message, as in llama-server


class _LineDecoder(utf_8.IncrementalDecoder):
    """UTF-8 that ends the connection at a line that is too long, of which the SDK has no limit."""

    num_bytes = 0  # since the last line feed

    def decode(self, data: Any, final: bool = False) -> str:
        rest = data.rpartition(b"\n")[2]
        self.num_bytes = len(rest) + self.num_bytes * (len(rest) == len(data))
        if self.num_bytes > MAX_LINE_BYTES:
            _connected.get().end_by_line()
            return ""
        return super().decode(data, final)


def _find_codec(name: str) -> codecs.CodecInfo | None:
    utf8 = codecs.lookup("utf-8")
    return (
        codecs.CodecInfo(utf8.encode, utf8.decode, incrementaldecoder=_LineDecoder, name=name)
        if name == _LINES
        else None
    )


_LINES = "headstart_mcp_lines"
codecs.register(_find_codec)
_connected: ContextVar[McpServer] = ContextVar("_connected")  # whose output a task reads


class McpServer:
    """One server. A call restarts its program if it has ended."""

    def __init__(self, name: str, config: McpServerConfig) -> None:
        self.name = name
        self._config = config
        self._opening = asyncio.Lock()
        self._session: ClientSession | None = None
        self._holding: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._has_ended: Callable[[], bool] = lambda: True
        self._failure, self._failed_at = "", float("-inf")
        self._is_line_too_long = False

    async def discover(self) -> list[Tool]:
        """The server's tools; none, with a warning, if it does not work."""
        seconds = 10.0
        try:
            async with asyncio.timeout(seconds):
                listed = await self._list_tools()
        except (ToolError, TimeoutError) as error:
            reason = str(error) or f"no answer within {seconds:.0f} seconds"
            log.warning("the tools of the MCP server %s are left out: %s", self.name, reason)
            await self.close()
            return []
        log.info("the MCP server %s offers %d tools", self.name, len(listed))
        return [self._tool(one) for one in listed]

    def _tool(self, listed: ListedTool) -> Tool:
        async def run(call: ToolInvocation) -> dict[str, Any]:
            return {"plain_text_response": await self._call(listed.name, call.arguments)}

        name = f"{self.name}_{listed.name}"
        return Tool(
            name=name,
            title=name,
            description=listed.description or "",
            parameters=listed.input_schema,
            run=run,
            kind="mcp",
        )

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        session = await self._open()
        result = await self._answer(session.call_tool(tool, dict(arguments)))
        text = "\n".join(part.text for part in result.content if part.type == "text")
        if result.is_error:
            raise ToolError(text or f"{tool} of the MCP server {self.name} failed")
        return text

    def end_by_line(self) -> None:
        """End the program for a line that is too long."""
        self._session, self._is_line_too_long = None, True
        self._ending.set()

    async def close(self) -> None:
        self._session = None
        if self._holding is not None:
            self._ending.set()
            await asyncio.gather(self._holding, return_exceptions=True)

    async def _list_tools(self) -> list[ListedTool]:
        session = await self._open()
        tools: list[ListedTool] = []
        position = PaginatedRequestParams()
        for _ in range(100):  # pages
            page = await self._answer(session.list_tools(params=position))
            tools += page.tools
            if not page.next_cursor:
                break
            position = PaginatedRequestParams(cursor=page.next_cursor)
        return tools

    async def _open(self) -> ClientSession:
        async with self._opening:
            if self._session is not None and not self._has_ended():
                return self._session
            if time.monotonic() - self._failed_at < 5.0:  # seconds
                raise ToolError(self._failure)
            await self.close()
            started: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
            self._ending.clear()
            self._holding = asyncio.create_task(self._hold(started))
            try:
                await asyncio.wait((started, self._holding), return_when=asyncio.FIRST_COMPLETED)
                if not started.done():
                    await self._holding  # it raises
                session = started.result()
                await self._answer(session.initialize())
            except BaseException as error:  # also if the call is cancelled
                await self.close()
                if isinstance(error, ToolError):
                    self._failure, self._failed_at = str(error), time.monotonic()
                raise
            self._session = session
            return session

    async def _hold(self, started: asyncio.Future[ClientSession]) -> None:
        """Keep the program running until `close`; the task that starts it must also end it."""
        config, self._is_line_too_long = self._config, False
        _connected.set(self)
        parameters = StdioServerParameters(
            command=config.command,
            args=config.args,
            env=shared_environment() | config.env,
            cwd=config.cwd,
            encoding=_LINES,
            encoding_error_handler="replace",
        )
        info = Implementation(name="headstart", version=__version__)
        try:
            async with (
                stdio_client(parameters) as (read, write),
                ClientSession(read, write, config.timeout_ms / 1000, client_info=info) as session,
            ):
                # the SDK closes the sender at the end of the program's output
                answers = cast("MemoryObjectReceiveStream[Any]", read)
                self._has_ended = lambda: answers.statistics().open_send_streams == 0
                started.set_result(session)
                await self._ending.wait()
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            raise ToolError(f"the MCP server {self.name} cannot be started: {error}") from error

    async def _answer(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except MCPError as error:
            reasons = {
                REQUEST_TIMEOUT: f" did not answer within {self._config.timeout_ms / 1000:g} "
                "seconds (timeout_ms)",
                CONNECTION_CLOSED: f" wrote a line of more than {MAX_LINE_BYTES >> 20} MiB, the "
                "longest that is read; ask it for less"
                if self._is_line_too_long
                else " ended",
            }
            reason = reasons.get(error.code, f": {error.message}")
            raise ToolError(f"the MCP server {self.name}{reason}") from error
        except (RuntimeError, ValueError) as error:  # the answer does not fit the protocol
            raise ToolError(f"the MCP server {self.name}: {error}") from error
