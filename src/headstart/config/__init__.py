"""Everything that can be set, once: names, defaults, flags and help."""

from headstart.config.chat import ChatConfig, SamplingConfig
from headstart.config.engine import (
    CACHE_TYPES,
    LEAST_CONTEXT,
    POOLINGS,
    DraftEngineConfig,
    EmbeddingConfig,
    EngineConfig,
    ImageConfig,
    rpc_endpoints,
)
from headstart.config.fields import (
    Option,
    check_ranges,
    flag_of,
    option,
    option_of,
    read_switch,
)
from headstart.config.logs import LogConfig
from headstart.config.server import RecordingConfig, RouterConfig, ServerConfig, ToolsConfig
from headstart.config.settings import (
    SPECULATOR_ALIASES,
    Config,
    ModelConfig,
    SchedulerConfig,
    SpeculationConfig,
    read_weights,
)

__all__ = [
    "CACHE_TYPES",
    "LEAST_CONTEXT",
    "POOLINGS",
    "SPECULATOR_ALIASES",
    "ChatConfig",
    "Config",
    "DraftEngineConfig",
    "EmbeddingConfig",
    "EngineConfig",
    "ImageConfig",
    "LogConfig",
    "ModelConfig",
    "Option",
    "RecordingConfig",
    "RouterConfig",
    "SamplingConfig",
    "SchedulerConfig",
    "ServerConfig",
    "SpeculationConfig",
    "ToolsConfig",
    "check_ranges",
    "flag_of",
    "option",
    "option_of",
    "read_switch",
    "read_weights",
    "rpc_endpoints",
]
