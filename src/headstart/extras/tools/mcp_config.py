"""Reads the list of MCP servers, in the format of Cursor and Claude Desktop."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headstart.config import ToolsConfig
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)


class McpServerConfig(BaseModel):
    """A program that speaks MCP over its standard input and output."""

    model_config = ConfigDict(frozen=True, strict=True)

    command: str = ""  # none: it is reached over HTTP, by other programs
    args: list[str] = []
    env: dict[str, str] = {}  # in addition to `shared_environment`
    cwd: str | None = None
    timeout_ms: float = Field(30_000, gt=0)  # of one call

    @model_validator(mode="before")
    @classmethod
    def _read_fields(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {k: v for k, v in given.items() if v is not None} if given.get("command") else {}


class _McpFile(BaseModel):
    mcpServers: dict[str, McpServerConfig]


def read_mcp_servers(config: ToolsConfig) -> dict[str, McpServerConfig]:
    """The servers of the file, then those of the text; the first of a name wins.

    Raises:
        ConfigError: something cannot be read.
    """
    servers: dict[str, McpServerConfig] = {}
    for origin, text in _texts(config):
        try:
            found = _McpFile.model_validate_json(text).mcpServers
        except ValidationError as error:
            first = error.errors()[0]
            place, given = ".".join(("", *map(str, first["loc"]))), first["input"]
            # a text where a number belongs may be a secret
            is_shown = isinstance(given, (int, float)) and ".env." not in place
            shown = f" is {given};" if is_shown else ":"
            raise ConfigError(
                f"{origin}{place}{shown} {first['msg'].lower()}; write "
                '{"mcpServers": {"NAME": {"command": "...", "args": [...]}}}'
            ) from error
        for name, one in found.items():
            if not one.command:
                log.warning("the MCP server %s has no command and is left out", name)
            elif name in servers:
                log.warning("the MCP server %s is named twice; the second is left out", name)
            else:
                servers[name] = one
    return servers


def _texts(config: ToolsConfig) -> Iterator[tuple[str, str]]:
    if config.mcp_servers_config:
        origin = f"--mcp-servers-config {config.mcp_servers_config}"
        try:
            yield origin, Path(config.mcp_servers_config).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{origin} cannot be read: {error}") from error
    if config.mcp_servers_json:
        yield "--mcp-servers-json", config.mcp_servers_json
