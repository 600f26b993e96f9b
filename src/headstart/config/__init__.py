"""Everything that can be set, once: names, defaults, flags and help."""

from headstart.config.chat import ChatConfig
from headstart.config.embedding import POOLINGS, EmbeddingConfig
from headstart.config.engine import (
    CACHE_TYPES,
    LEAST_CONTEXT,
    PLAIN_CACHE_TYPES,
    DraftEngineConfig,
    EngineConfig,
    rpc_endpoints,
)
from headstart.config.fields import option
from headstart.config.logs import LogConfig
from headstart.config.router import RouterConfig
from headstart.config.sampling import SamplingConfig
from headstart.config.settings import (
    DEFAULT_DRAFT_MAX,
    SPECULATOR_ALIASES,
    Config,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculationConfig,
)
from headstart.config.tools import ToolsConfig

__all__ = [
    "CACHE_TYPES",
    "DEFAULT_DRAFT_MAX",
    "LEAST_CONTEXT",
    "PLAIN_CACHE_TYPES",
    "POOLINGS",
    "SPECULATOR_ALIASES",
    "ChatConfig",
    "Config",
    "DraftEngineConfig",
    "EmbeddingConfig",
    "EngineConfig",
    "LogConfig",
    "ModelConfig",
    "RouterConfig",
    "SamplingConfig",
    "SchedulerConfig",
    "ServerConfig",
    "SpeculationConfig",
    "ToolsConfig",
    "option",
    "rpc_endpoints",
]
