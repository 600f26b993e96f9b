"""What of all this was switched on, and what follows from that."""

from __future__ import annotations

from headstart.config import ToolsConfig

ALL_TOOLS = "all"


def tool_names(config: ToolsConfig) -> tuple[str, ...]:
    """Built-in tools that were asked for; `all` stands for all."""
    if config.agent:
        return (ALL_TOOLS,)
    return tuple(name.strip() for name in (config.tools or "").split(",") if name.strip())


def has_proxy(config: ToolsConfig) -> bool:
    """Whether requests of pages are passed on."""
    return config.ui_mcp_proxy or config.agent


def has_mcp_servers(config: ToolsConfig) -> bool:
    """Whether MCP servers were named."""
    return bool(config.mcp_servers_config or config.mcp_servers_json)


def runs_tools(config: ToolsConfig) -> bool:
    """Whether the server runs anything for clients."""
    return bool(tool_names(config)) or has_mcp_servers(config)


def limit_origins(config: ToolsConfig, cors_origins: str | None) -> str | None:
    """Pages that may use the server: only this machine's where it runs tools for them."""
    return "localhost" if cors_origins is None and runs_tools(config) else cors_origins


def risks(config: ToolsConfig) -> tuple[str, ...]:
    """What is switched on and must not be reached by strangers."""
    named = (
        ("built-in tools", bool(tool_names(config))),
        ("MCP servers", has_mcp_servers(config)),
        ("the proxy for pages", has_proxy(config)),
    )
    return tuple(name for name, is_on in named if is_on)
