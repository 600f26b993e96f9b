"""Which MCP servers there are, in the format that Cursor and Claude Desktop read."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.config import ToolsConfig
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 30_000
FORM = '{"mcpServers": {"NAME": {"command": "...", "args": [...]}}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    """A program that speaks MCP over its standard input and output."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # besides the server's own
    cwd: str | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_MS / 1000  # of one call


def read_mcp_servers(config: ToolsConfig) -> list[McpServerConfig]:
    """The servers of the file, then those of the text; of two with one name the first.

    Raises:
        ConfigError: something cannot be read.
    """
    servers: dict[str, McpServerConfig] = {}
    for origin, text in _texts(config):
        for one in _read(text, origin):
            if one.name in servers:
                log.warning("the MCP server %s is named twice; the second is left out", one.name)
            servers.setdefault(one.name, one)
    return list(servers.values())


def _texts(config: ToolsConfig) -> Iterator[tuple[str, str]]:
    if config.mcp_servers_config:
        origin = f"--mcp-servers-config {config.mcp_servers_config}"
        try:
            yield origin, Path(config.mcp_servers_config).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{origin} cannot be read: {error}") from error
    if config.mcp_servers_json:
        yield "--mcp-servers-json", config.mcp_servers_json


def _read(text: str, origin: str) -> Iterator[McpServerConfig]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{origin} is not valid JSON: {error}; write {FORM}") from error
    servers = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(servers, dict):
        raise ConfigError(f"{origin} has no mcpServers; write {FORM}")
    for name, entry in servers.items():
        if not isinstance(entry, dict):
            raise ConfigError(f"{origin}: {name} is {entry!r:.60} but must be an object; {FORM}")
        if not entry.get("command"):  # one that is reached over HTTP, for other programs
            log.warning("the MCP server %s has no command and is left out", name)
            continue
        yield _server(name, entry, f"{origin}: {name}")


def _server(name: str, entry: Mapping[str, Any], origin: str) -> McpServerConfig:
    args: Any = entry.get("args") or []
    env: Any = entry.get("env") or {}
    cwd, timeout = entry.get("cwd") or None, entry.get("timeout_ms", DEFAULT_TIMEOUT_MS)
    wrong = {
        "command must be text": not isinstance(entry["command"], str),
        "args must be a list of texts": not _are_texts(args),
        "env must be an object of texts": not isinstance(env, dict)
        or not _are_texts([*env, *env.values()]),
        "cwd must be text": not isinstance(cwd, str | None),
        "timeout_ms must be a number above 0": type(timeout) not in (int, float) or timeout <= 0,
    }
    for reason, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(f"{origin}: {reason}")
    return McpServerConfig(
        name=name, command=entry["command"], args=tuple(args), env=env, cwd=cwd,
        timeout_seconds=timeout / 1000,
    )  # fmt: skip


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
