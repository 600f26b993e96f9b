"""Tools that the server runs on its machine for clients: files, programs, and those of MCP servers.

Knows no HTTP and no model. All of it is off unless `ToolsConfig` names it.
"""
