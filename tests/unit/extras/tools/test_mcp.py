"""MCP servers: what is configured, what they offer, and what happens when they fail."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headstart.config import ToolsConfig
from headstart.extras.tools.mcp_config import read_mcp_servers
from headstart.extras.tools.toolbox import Toolbox
from headstart.types.errors import CapacityError, ConfigError

PROGRAM = str(Path(__file__).with_name("mcp_program.py"))
ENTRY: dict[str, Any] = {"command": sys.executable, "args": [PROGRAM], "env": {"WHERE": "here"}}


def toolbox(**servers: Any) -> Toolbox:
    return Toolbox(ToolsConfig(mcp_servers_json=json.dumps({"mcpServers": servers})))


async def call(box: Toolbox, tool: str, **arguments: Any) -> dict[str, Any]:
    return await box.call((await box.tools())[tool], arguments)


def run(box: Toolbox, use: Any) -> Any:
    async def started() -> Any:
        box.start()
        try:
            return await use(box)
        finally:
            await box.close()

    return asyncio.run(started())


def test_tools_of_all_pages_are_offered_under_the_servers_name():
    async def use(box: Toolbox) -> list[dict[str, Any]]:
        return [tool.describe() for tool in (await box.tools()).values()]

    described = run(toolbox(a=ENTRY, b=ENTRY), use)
    names = [f"{server}_{tool}" for server in "ab" for tool in
             ("echo", "fail", "sleep", "end", "leave", "where")]  # fmt: skip
    assert [one["tool"] for one in described] == names
    function = described[0]["definition"]["function"]
    assert (function["name"], described[0]["type"]) == ("a_echo", "mcp")
    assert function["parameters"]["properties"] == {"text": {"type": "string"}}


def test_an_answer_is_text_and_a_failure_is_told_to_the_model():
    async def use(box: Toolbox) -> list[Any]:
        several = await asyncio.gather(*(call(box, "a_echo", text=str(i)) for i in range(5)))
        return [several, await call(box, "a_fail", text="wrong"), await call(box, "a_where")]

    several, failed, where = run(toolbox(a=ENTRY), use)
    assert several == [{"plain_text_response": str(i)} for i in range(5)]
    assert failed == {"error": "wrong"}
    assert where == {"plain_text_response": "here"}  # its own environment


def test_a_server_sees_no_variables_of_ours_but_those_it_needs(monkeypatch):
    monkeypatch.setenv("WHERE", "a secret of ours")
    answered = run(toolbox(a=ENTRY | {"env": {}}), lambda box: call(box, "a_where"))
    assert answered == {"plain_text_response": ""}


def test_a_server_that_ended_is_started_again():
    async def use(box: Toolbox) -> list[Any]:
        return [await call(box, "a_end"), await call(box, "a_echo", text="again")]

    ended, answered = run(toolbox(a=ENTRY), use)
    assert "ended" in ended["error"]
    assert answered == {"plain_text_response": "again"}


def test_a_server_that_ended_between_two_calls_is_started_again():
    async def use(box: Toolbox) -> list[Any]:
        answered = [await call(box, "a_leave", text="bye")]
        while not box._servers[0]._has_ended():
            await asyncio.sleep(0.01)
        return [*answered, await call(box, "a_echo", text="again")]

    answered = run(toolbox(a=ENTRY), use)
    assert answered == [{"plain_text_response": "bye"}, {"plain_text_response": "again"}]


def test_a_server_of_the_official_sdk_is_understood():
    program = (
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('sums')\n"
        "@server.tool()\n"
        "def add(a: int, b: int) -> int:\n"
        "    'Add two numbers.'\n"
        "    return a + b\n"
        "server.run()\n"
    )
    entry = {"command": sys.executable, "args": ["-c", program]}

    async def use(box: Toolbox) -> Any:
        tool = (await box.tools())["sums_add"]
        wrong = await call(box, "sums_add", a="one", b=1)
        return tool.description, await call(box, "sums_add", a=1, b=2), wrong

    description, answered, wrong = run(toolbox(sums=entry), use)
    assert description == "Add two numbers."
    assert answered == {"plain_text_response": "3"}
    assert "add" in wrong["error"]


def test_a_slow_answer_is_not_waited_for_longer_than_was_set():
    box = toolbox(a=ENTRY | {"timeout_ms": 300})
    failed = run(box, lambda box: call(box, "a_sleep"))
    assert "0.3 seconds" in failed["error"]


def test_the_end_of_the_server_waits_for_no_tool():
    async def use(box: Toolbox) -> None:
        await box.tools()
        sleeping = asyncio.create_task(call(box, "a_sleep"))
        await asyncio.sleep(0.1)
        await box.close()
        with pytest.raises(CapacityError):
            await sleeping

    run(toolbox(a=ENTRY), use)


def test_a_server_that_does_not_start_leaves_the_others():
    async def use(box: Toolbox) -> list[str]:
        return list(await box.tools())

    assert "good_echo" in run(toolbox(bad={"command": "no-such-program-1"}, good=ENTRY), use)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no json", "not valid JSON"),
        ("[]", "no mcpServers"),
        ('{"mcpServers": {"a": 1}}', "must be an object"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "args is 'y'; .* list"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}', "env.A is 1; .* string"),
        (
            '{"mcpServers": {"a": {"command": "x", "timeout_ms": 0}}}',
            "timeout_ms is 0; .* greater than 0",
        ),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(text, reason):
    with pytest.raises(ConfigError, match=reason):
        read_mcp_servers(ToolsConfig(mcp_servers_json=text))


def test_servers_come_from_file_and_text_and_the_first_of_a_name_counts(tmp_path):
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "one"}, "web": {"url": "x"}}}))
    text = json.dumps({"mcpServers": {"a": {"command": "two"}, "b": {"command": "three"}}})
    config = ToolsConfig(mcp_servers_config=str(file), mcp_servers_json=text)
    assert [(one.name, one.command) for one in read_mcp_servers(config)] == [
        ("a", "one"),
        ("b", "three"),
    ]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_mcp_servers(ToolsConfig(mcp_servers_config=str(tmp_path / "none.json")))
