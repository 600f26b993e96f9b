"""Tools that the server runs for its clients, and the proxy for pages: off unless asked for."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.config.fields import option


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsConfig:
    """Tools on the server's machine, for all clients that have access."""

    tools: str | None = option(
        None,
        "built-in tools that clients may run on this machine, separated by commas, or all: "
        "read_file, file_glob_search, grep_search, exec_shell_command, write_file, edit_file, "
        "get_info. Anyone who reaches the server can then read and write files and run programs "
        "as its user (docs/security.md)",
        for_router=True,
    )
    tools_runtime: str | None = option(
        None,
        "where the built-in tools run instead of on this machine: docker:IMAGE or podman:IMAGE "
        "for a container that is started for all calls and removed at the end, "
        "docker-container:ID or podman-container:ID for a running one, ssh:TARGET for another "
        "host",
        for_router=True,
    )
    mcp_servers_config: str | None = option(
        None,
        'JSON file with MCP servers, {"mcpServers": {NAME: {"command", "args", "env", "cwd", '
        '"timeout_ms"}}}; their tools are offered to clients as NAME_TOOL (needs '
        "`pip install headstart[tools]`)",
        for_router=True,
    )
    mcp_servers_json: str | None = option(None, "the same as text", for_router=True)
    ui_mcp_proxy: bool = option(
        False,
        "forward requests of pages to any address (/cors-proxy), to reach MCP servers that do "
        "not allow them. Anyone who reaches the server then reaches what it reaches",
        for_router=True,
    )
    agent: bool = option(False, "same as --tools all --ui-mcp-proxy", for_router=True)
