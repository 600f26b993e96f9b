"""Reads the list of MCP servers, in the format of Cursor and Claude Desktop."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headstart.config import ToolsConfig
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)

FORM = '{"mcpServers": {"NAME": {"command": "...", "args": [...]}}}'


class McpServerConfig(BaseModel):
    """A program that speaks MCP over its standard input and output."""

    model_config = ConfigDict(frozen=True, strict=True)

    name: str
    command: str
    args: list[str] = []
    env: dict[str, str] = {}  # beside `shared_environment`
    cwd: str | None = None
    timeout_ms: float = Field(30_000, gt=0)  # of one call


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
        yield _server(name, entry, origin)


def _server(name: str, entry: dict[str, Any], origin: str) -> McpServerConfig:
    given = {key: value for key, value in entry.items() if value is not None}
    try:
        return McpServerConfig.model_validate(given | {"name": name})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{origin}: {name}: {place} is {first['input']!r:.60}; {first['msg'].lower()}"
        ) from error
