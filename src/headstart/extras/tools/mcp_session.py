"""One session with an MCP server: JSON-RPC, one message a line, over a program's pipes.

Only tools are asked for. Several calls may be under way; answers are told apart by their ids.
Protocol: https://modelcontextprotocol.io/specification/2024-11-05
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from headstart import __version__
from headstart.extras.tools.command import end_process
from headstart.extras.tools.mcp_config import McpServerConfig
from headstart.extras.tools.tool import ToolError

log = logging.getLogger(__name__)

PROTOCOL_VERSION = "2024-11-05"
MAX_LINE_BYTES = 8 * 2**20
MAX_PAGES = 100  # of a list of tools


class McpSession:
    """A running program and what it was asked."""

    def __init__(self, config: McpServerConfig, process: asyncio.subprocess.Process) -> None:
        self._config = config
        self._process = process
        self._ids = count(1)
        self._answers: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._last_words: deque[str] = deque(maxlen=5)  # lines of its stderr
        self._listeners = [
            asyncio.ensure_future(self._read_answers()),
            asyncio.ensure_future(self._read_errors()),
        ]

    @classmethod
    async def open(cls, config: McpServerConfig) -> McpSession:
        """Start the program and shake hands.

        Raises:
            ToolError: it cannot be started, or does not answer as an MCP server.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                config.command,
                *config.args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=config.cwd,
                env=os.environ | config.env,
                start_new_session=True,
                limit=MAX_LINE_BYTES,
            )
        except (OSError, ValueError) as error:
            raise ToolError(f"the MCP server {config.name} cannot be started: {error}") from error
        session = cls(config, process)
        try:
            await session._ask(
                "initialize",
                {
                    "protocolVersion": PROTOCOL_VERSION,
                    "capabilities": {},
                    "clientInfo": {"name": "headstart", "version": __version__},
                },
            )
            await session._send({"method": "notifications/initialized"})
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def is_alive(self) -> bool:
        """Whether it can still be asked."""
        return self._process.returncode is None and not self._listeners[0].done()

    async def list_tools(self) -> list[Mapping[str, Any]]:
        """What the server offers: name, description and inputSchema of each.

        Raises:
            ToolError: it does not say.
        """
        tools: list[Mapping[str, Any]] = []
        parameters: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self._ask("tools/list", parameters)
            listed = page.get("tools")
            tools += [
                one
                for one in (listed if isinstance(listed, list) else [])
                if isinstance(one, dict) and isinstance(one.get("name"), str)
            ]
            if not page.get("nextCursor"):
                break
            parameters = {"cursor": page["nextCursor"]}
        return tools

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """What a tool answers, as text.

        Raises:
            ToolError: the tool says that it failed, or nothing in time.
        """
        result = await self._ask("tools/call", {"name": tool, "arguments": dict(arguments)})
        parts = result.get("content")
        texts = [
            str(part.get("text", ""))
            for part in (parts if isinstance(parts, list) else [])
            if isinstance(part, dict) and part.get("type") == "text"
        ]
        text = "\n".join(texts)
        if result.get("isError"):
            raise ToolError(text or f"{tool} of the MCP server {self._config.name} failed")
        return text

    async def close(self) -> None:
        """End the program; who waits for an answer is told."""
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        self._give_up()
        await end_process(self._process)

    async def _ask(self, method: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        number = next(self._ids)
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            await self._send({"id": number, "method": method, "params": parameters})
            reply = await asyncio.wait_for(answer, self._config.timeout_seconds)
        except TimeoutError:
            raise ToolError(
                f"the MCP server {self._config.name} did not answer within "
                f"{self._config.timeout_seconds:g} seconds (timeout_ms)"
            ) from None
        finally:
            self._answers.pop(number, None)
        error, result = reply.get("error"), reply.get("result")
        if error is not None or not isinstance(result, dict):
            reason = error.get("message") if isinstance(error, dict) else error
            raise ToolError(f"the MCP server {self._config.name}: {reason or 'no result'}")
        return result

    async def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise ToolError(self._ended()) from None

    async def _read_answers(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await _line(self._process.stdout):
                with suppress(ValueError):  # what is no JSON is none of ours
                    self._take(json.loads(line))
        finally:
            self._give_up()

    def _take(self, message: Any) -> None:
        """Notifications, requests and late answers are left alone."""
        if not isinstance(message, dict) or "method" in message:
            return
        number = message.get("id")
        answer = self._answers.get(number) if isinstance(number, int) else None
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while line := await _line(self._process.stderr):
            text = line.decode("utf-8", "replace").rstrip()
            self._last_words.append(text)
            log.debug("MCP server %s: %s", self._config.name, text)

    def _give_up(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ToolError(self._ended()))

    def _ended(self) -> str:
        words = "; ".join(self._last_words)
        return f"the MCP server {self._config.name} ended" + (f": {words:.400}" if words else "")


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, empty at the end; one that is too long counts as an empty line."""
    try:
        return await stream.readline()
    except ValueError:
        log.warning("an MCP server wrote a line of more than %d MiB", MAX_LINE_BYTES >> 20)
        return b"\n"
