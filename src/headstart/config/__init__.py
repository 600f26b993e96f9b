"""Everything that can be set, once: names, defaults, flags and help."""

from headstart.config.chat import ChatConfig as ChatConfig
from headstart.config.chat import SamplingConfig as SamplingConfig
from headstart.config.engine import CACHE_TYPES as CACHE_TYPES
from headstart.config.engine import LEAST_CONTEXT as LEAST_CONTEXT
from headstart.config.engine import MOST_CONTEXT as MOST_CONTEXT
from headstart.config.engine import PLAIN_CACHE_TYPES as PLAIN_CACHE_TYPES
from headstart.config.engine import POOLINGS as POOLINGS
from headstart.config.engine import DraftEngineConfig as DraftEngineConfig
from headstart.config.engine import EmbeddingConfig as EmbeddingConfig
from headstart.config.engine import EngineConfig as EngineConfig
from headstart.config.engine import ImageConfig as ImageConfig
from headstart.config.fields import option as option
from headstart.config.server import RecordingConfig as RecordingConfig
from headstart.config.server import RouterConfig as RouterConfig
from headstart.config.server import ServerConfig as ServerConfig
from headstart.config.server import ToolsConfig as ToolsConfig
from headstart.config.settings import Config as Config
from headstart.config.settings import ModelConfig as ModelConfig
from headstart.config.settings import SchedulerConfig as SchedulerConfig
from headstart.config.settings import SpeculationConfig as SpeculationConfig
from headstart.config.settings import speculators_named as speculators_named
