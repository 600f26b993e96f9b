"""MCP servers: what is configured, what they offer, and what happens when they fail."""

from __future__ import annotations

import asyncio
import json
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import stdio

from headstart.config import ToolsConfig
from headstart.extras.tools.mcp_config import read_mcp_servers
from headstart.extras.tools.routes import HostedTools
from headstart.types.errors import CapacityError, ConfigError

PROGRAM = str(Path(__file__).with_name("mcp_program.py"))
ENTRY: dict[str, Any] = {"command": sys.executable, "args": [PROGRAM]}


@pytest.fixture(autouse=True)
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits so long for a program whose input it closed; one that sleeps does not end."""
    monkeypatch.setattr(stdio, "PROCESS_TERMINATION_TIMEOUT", 0.1)


@asynccontextmanager
async def started(**servers: Any) -> AsyncIterator[HostedTools]:
    box = HostedTools(ToolsConfig(mcp_servers_json=json.dumps({"mcpServers": servers})), {})
    await box.start()
    try:
        yield box
    finally:
        await box.close()


async def call(box: HostedTools, tool: str, **arguments: Any) -> dict[str, Any]:
    return await box.call((await box.tools())[tool], arguments)


async def test_tools_of_all_pages_are_offered_under_the_servers_name():
    async with started(a=ENTRY, b=ENTRY) as box:
        described = [tool.describe() for tool in (await box.tools()).values()]
    names = [f"{server}_{tool}" for server in "ab" for tool in
             ("echo", "fail", "sleep", "end", "leave", "where", "flood")]  # fmt: skip
    assert [one["tool"] for one in described] == names
    function = described[0]["definition"]["function"]
    assert (function["name"], described[0]["type"]) == ("a_echo", "mcp")
    assert function["parameters"]["properties"] == {"text": {"type": "string"}}


async def test_an_answer_is_text_and_a_failure_is_told_to_the_model():
    async with started(a=ENTRY) as box:
        several = await asyncio.gather(*(call(box, "a_echo", text=str(i)) for i in range(5)))
        assert several == [{"plain_text_response": str(i)} for i in range(5)]
        assert await call(box, "a_fail", text="wrong") == {"error": "wrong"}


@pytest.mark.parametrize(("own", "seen"), [({"WHERE": "here"}, "here"), ({}, "")])
async def test_a_server_sees_no_variables_of_ours_but_those_it_needs(own, seen, monkeypatch):
    monkeypatch.setenv("WHERE", "a secret of ours")
    async with started(a=ENTRY | {"env": own}) as box:
        assert await call(box, "a_where") == {"plain_text_response": seen}


@pytest.mark.parametrize("tool", ["end", "leave"])
async def test_a_server_that_ended_in_a_call_or_between_two_is_started_again(tool):
    async with started(a=ENTRY) as box:
        answered = await call(box, f"a_{tool}", text="bye")
        assert "ended" in answered["error"] if tool == "end" else answered == BYE
        while not box._servers[0]._has_ended():
            await asyncio.sleep(0.01)
        assert await call(box, "a_echo", text="bye") == BYE


async def test_a_line_without_end_ends_the_connection_and_takes_no_memory():
    async with started(a=ENTRY) as box:
        assert await call(box, "a_echo", text="é" * 1_000_000) == {
            "plain_text_response": "é" * 1_000_000
        }
        tracemalloc.start()
        answered = await call(box, "a_flood")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert answered == {
            "error": "the MCP server a wrote a line of more than 8 MiB, the longest that is read; "
            "ask it for less"
        }
        assert peak < 40 << 20
        assert await call(box, "a_echo", text="bye") == BYE


BYE = {"plain_text_response": "bye"}


async def test_a_server_of_the_official_sdk_is_understood():
    program = (
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('sums')\n"
        "@server.tool()\n"
        "def add(a: int, b: int) -> int:\n"
        "    'Add two numbers.'\n"
        "    return a + b\n"
        "server.run()\n"
    )
    async with started(sums={"command": sys.executable, "args": ["-c", program]}) as box:
        assert (await box.tools())["sums_add"].description == "Add two numbers."
        assert await call(box, "sums_add", a=1, b=2) == {"plain_text_response": "3"}
        assert "add" in (await call(box, "sums_add", a="one", b=1))["error"]


async def test_a_slow_answer_is_not_waited_for_longer_than_was_set():
    async with started(a=ENTRY | {"timeout_ms": 300}) as box:
        assert "0.3 seconds" in (await call(box, "a_sleep"))["error"]


def starting_once(starts: Path) -> dict[str, Any]:
    return ENTRY | {"timeout_ms": 1000, "env": {"STARTS": str(starts)}}


async def leave(box: Any) -> None:
    """Let the program of server a end."""
    await call(box, "a_leave", text="bye")
    while not box._servers[0]._has_ended():
        await asyncio.sleep(0.01)


async def test_calls_that_wait_for_a_start_that_fails_fail_with_it(tmp_path):
    starts = tmp_path / "starts"
    async with started(a=starting_once(starts)) as box:
        await leave(box)
        answers = await asyncio.gather(*(call(box, "a_echo") for _ in range(8)))
    assert {one["error"] for one in answers} == {
        "the MCP server a did not answer within 1 seconds (timeout_ms)"
    }
    assert starts.read_text() == "xx"


async def test_a_program_that_offers_no_tools_is_ended(tmp_path):
    starts = tmp_path / "starts"
    starts.write_text("x")
    async with started(a=starting_once(starts)) as box:
        assert await box.tools() == {}
        assert starts.read_text() == "xx"
        assert box._servers[0]._has_ended()


async def test_a_program_is_ended_if_the_call_that_starts_it_is_cancelled(tmp_path):
    starts = tmp_path / "starts"
    async with started(a=starting_once(starts)) as box:
        await leave(box)
        calling = asyncio.create_task(call(box, "a_echo"))
        while starts.read_text() != "xx":
            await asyncio.sleep(0.01)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert calling.cancelled()
        assert box._servers[0]._has_ended()


async def test_the_end_of_the_server_waits_for_no_tool():
    async with started(a=ENTRY) as box:
        await box.tools()
        sleeping = asyncio.create_task(call(box, "a_sleep"))
        await asyncio.sleep(0.1)
        await box.close()
        with pytest.raises(CapacityError):
            await sleeping


async def test_a_server_that_does_not_start_leaves_the_others():
    async with started(bad={"command": "no-such-program-1"}, good=ENTRY) as box:
        assert "good_echo" in await box.tools()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no json", ': invalid json.*write {"mcpServers"'),
        ("[]", "should be an object"),
        ("{}", "mcpServers: field required"),
        ('{"mcpServers": {"a": 1}}', "a is 1; .* object"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "args: .* array"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}', "env.A: .* string"),
        ('{"mcpServers": {"a": {"command": "x", "timeout_ms": 0}}}', "is 0; .* greater than 0"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(text, reason):
    with pytest.raises(ConfigError, match=reason):
        read_mcp_servers(ToolsConfig(mcp_servers_json=text))


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "KEY"}', '["KEY"]', '"KEY', '{"mcpServers": ["KEY"]}', '{"mcpServers": "KEY"}',
        '{"mcpServers": {"a": {"command": "x", "env": "A=KEY"}}}',
        '{"mcpServers": {"a": {"command": "x", "args": "--key KEY"}}}',
    ],
)  # fmt: skip
def test_what_is_said_of_a_wrong_configuration_shows_no_key_in_it(text):
    with pytest.raises(ConfigError) as caught:
        read_mcp_servers(ToolsConfig(mcp_servers_json=text))
    assert "KEY" not in str(caught.value)


def test_servers_come_from_file_and_text_and_the_first_of_a_name_counts(tmp_path):
    file = tmp_path / "mcp.json"
    file.write_text(
        json.dumps({"mcpServers": {"a": {"command": "one"}, "web": {"url": "x", "args": "y"}}})
    )
    text = json.dumps({"mcpServers": {"a": {"command": "two"}, "b": {"command": "three"}}})
    config = ToolsConfig(mcp_servers_config=str(file), mcp_servers_json=text)
    found = read_mcp_servers(config)
    assert {name: one.command for name, one in found.items()} == {"a": "one", "b": "three"}
    with pytest.raises(ConfigError, match="cannot be read"):
        read_mcp_servers(ToolsConfig(mcp_servers_config=str(tmp_path / "none.json")))
