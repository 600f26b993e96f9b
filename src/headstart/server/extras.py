"""What an app has besides models, and what that changes of the server's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headstart.config import ServerConfig, ToolsConfig
from headstart.extras.tools.switches import limit_origins
from headstart.server.vertex import VertexRoutes


@dataclass(frozen=True, slots=True)
class Extras:
    """What is off unless somebody asked for it."""

    tools: ToolsConfig = field(default_factory=ToolsConfig)
    vertex: VertexRoutes | None = None

    @classmethod
    def of(cls, tools: ToolsConfig, environment: Mapping[str, str]) -> Extras:
        """What flags and the environment ask for.

        Raises:
            ConfigError: a variable cannot be used.
        """
        return cls(tools, VertexRoutes.of(environment))

    def applied(self, config: ServerConfig) -> ServerConfig:
        """The settings with what follows from these."""
        origins = limit_origins(self.tools, config.cors_origins)
        port = config.port if self.vertex is None else self.vertex.port
        return replace(config, cors_origins=origins, port=port)
