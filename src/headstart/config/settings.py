"""Everything that can be set, once: names, defaults, flags and help.

The command line, the environment names (HEADSTART_<FIELD>), the table in docs/flags.md and
`--print-config` are generated from these fields. A field's flag is `--field-name`; `aliases` add
the spellings that llama-server's users type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.config.chat import ChatConfig, SamplingConfig
from headstart.config.engine import (
    PLAIN_CACHE_TYPES,
    DraftEngineConfig,
    EmbeddingConfig,
    EngineConfig,
    ImageConfig,
)
from headstart.config.fields import option
from headstart.config.logs import LogConfig
from headstart.config.server import RecordingConfig, RouterConfig, ServerConfig, ToolsConfig
from headstart.types import DraftMode
from headstart.types.errors import ConfigError


def speculators_named(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, llama-server's replaced by ours."""
    theirs = {
        "draft-simple": "draft-model",
        "draft-mtp": "mtp",
        "draft-eagle3": "eagle3",
        "draft-dflash": "dflash",
        "draft-dspark": "dspark",
    }
    return tuple(dict.fromkeys(theirs.get(name, name) for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Source of the target model."""

    model: str | None = option(
        None,
        "GGUF file of the target model (first part of a split one); default: the embedded demo "
        "model",
    )
    hf_repo: str | None = option(None, "target model from the Hugging Face hub: user/repo[:quant]")
    hf_file: str | None = option(None, "file in --hf-repo, instead of choosing by quant")
    hf_token: str | None = option(None, "access token for the hub (also HF_TOKEN)", is_secret=True)
    offline: bool = option(False, "never use the network; take models from the cache only")
    draft_model: str | None = option(None, "GGUF file of a draft model", "--model-draft")
    draft_hf_repo: str | None = option(
        None, "draft model from the hub: user/repo[:quant]", "--hf-repo-draft"
    )
    alias: str | None = option(
        None, "names of the model in the API, separated by commas", separator=","
    )
    tags: str | None = option(
        None, "tags of the model in /v1/models, separated by commas", separator=","
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one worker."""

    parallel: int = option(
        4,
        "slots: requests generated at the same time",
        "--num-slots",
        least=1,
        most=250,  # libllama holds 256 sequences
        words={"-1": None},
    )
    max_queue: int = option(256, "requests that may wait before new ones get 503", least=0)
    prefill_chunk: int = option(
        64,
        "prompt tokens that a step may always process while other requests generate; on a CPU "
        "rounded so that steps have multiples of 64 rows",
        least=1,
    )
    prefill_ms: float = option(
        100.0,
        "milliseconds that a step may take to process more prompt tokens than --prefill-chunk "
        "while other requests generate; five times that if a tenant has two requests more",
        least=0,
    )
    checkpoint_min_step: int = option(
        1024,
        "prompt tokens between two checkpoints (see --ctx-checkpoints), 0 for 64; the first and "
        "the last message always end with one",
        least=1,
        words={"0": 64},
    )
    kv_unified: bool = option(
        True,
        "let each request use the whole context that the slots share; off: only its slot's share. "
        "Off by default where both --context and --parallel are given",
    )
    kv_unified_per_slot: int = option(
        0,
        "maximum tokens of one request, prompt and answer; 0: only the context limits it",
        least=0,
    )
    cache_prompt: bool = option(True, "reuse the longest known prefix of a prompt")
    share_prompts: bool = option(
        False,
        "reuse prompts across API keys; the holder of one key can then find out what others wrote",
    )
    cache_reuse: int = option(
        0,
        "reuse pieces of a cached prompt, of at least this length, at other positions of a new "
        "prompt; faster, but the answer may differ slightly; 0: none",
        least=0,
        words={"-1": 0},
    )
    context_shift: bool = option(
        False,
        "when a text fills the context, drop its older half and continue, instead of ending",
    )
    keep: int = option(
        0,
        "tokens at the beginning of a text that --context-shift never drops; -1: the prompt",
        least=-1,
    )
    cache_ram: int = option(
        8192,
        "maximum MiB of main memory for prompts that are moved out of the cache, and never more "
        "than half of the free memory, for which -1 stands; 0: none",
        least=0,
        words={"-1": 1 << 30},
    )
    cache_disk: int | None = option(
        None,
        "maximum MiB of disk for prompts and their answers, of all models and servers together; "
        "needs --cache-ram; 0: none; default of serve: 10240, or a tenth of what is free if that "
        "is less",
        least=0,
    )
    cache_disk_path: str | None = option(
        None, "folder for --cache-disk; default: prompts, in the cache directory"
    )
    cache_idle_slots: bool = option(
        True,
        "move the prompts of idle slots to main memory when a request comes, which makes steps "
        "faster; on a CPU only",
    )
    tenant_compile_seconds: int = option(
        120,
        "seconds in ten minutes that one tenant's constraints may compile while other tenants "
        "have some; then 429",
        least=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Which speculators draft and how far."""

    spec: str | None = option(
        None,
        "auto: draft where it pays; fixed: always draft up to --draft-max; off. Default: auto",
        choices=tuple(m.value for m in DraftMode),
    )
    spec_type: str | None = option(
        None,
        "speculators in order of preference: NAME,... or none (see docs/speculators.md)",
        separator=",",
    )
    draft_max: int | None = option(
        None,
        "maximum draft tokens per step, for all speculators (default 16; with auto an upper "
        "limit, default 32)",
        "--spec-draft-n-max",
        least=0,
    )
    draft_min: int = option(
        0, "drop drafts of fewer tokens than this", "--spec-draft-n-min", least=0
    )
    draft_p_min: float = option(
        0.0,
        "a draft model stops before a token less likely than this (0 to 1)",
        least=0.0,
        most=1.0,
    )
    spec_replace: str | None = option(
        None,
        "rewrite a marker of the target's chat template (TARGET) as one of the draft model's "
        "(DRAFT), for instance '<start_of_turn>user' '<|im_start|>user'; repeatable (elsewhere: "
        "one 'TARGET => DRAFT' per line)",
        is_pair=True,
        separator="\n",
    )
    spec_state: str | None = option(
        None,
        "file that keeps the state of control for the next start, or none. Default: in the cache "
        "directory",
    )
    # of speculators, by name: --spec-<name>-<option>
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        longest = self.longest_draft(self.mode)
        if self.mode is not DraftMode.OFF and self.draft_min > longest:
            raise ConfigError(
                f"--draft-min is {self.draft_min} but no draft is longer than {longest} tokens; "
                "lower it or raise "
                "--draft-max"
            )

    @property
    def mode(self) -> DraftMode:
        """The mode of requests that do not set one."""
        return DraftMode(self.spec) if self.spec else DraftMode.AUTO

    def longest_draft(self, mode: DraftMode) -> int:
        """Most draft tokens a step in this mode."""
        if self.draft_max is not None:
            return self.draft_max
        return {DraftMode.FIXED: 16, DraftMode.AUTO: 32, DraftMode.OFF: 0}[mode]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration; each component gets only the part that it needs."""

    model: ModelConfig = ModelConfig()
    engine: EngineConfig = field(default_factory=EngineConfig)
    draft_engine: DraftEngineConfig = field(default_factory=DraftEngineConfig)
    scheduler: SchedulerConfig = SchedulerConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    chat: ChatConfig = field(default_factory=ChatConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    images: ImageConfig = field(default_factory=ImageConfig)
    log: LogConfig = field(default_factory=LogConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    recording: RecordingConfig = field(default_factory=RecordingConfig)

    def __post_init__(self) -> None:
        draft_type = self.draft_engine.draft_cache_type_v
        types = ("--cache-type-v", self.engine.cache_type_v), ("--draft-cache-type-v", draft_type)
        for flag, kind in types if self.engine.flash_attn == "off" else ():
            if kind not in (None, *PLAIN_CACHE_TYPES):
                raise ConfigError(f"{flag} {kind} needs flash attention; drop --flash-attn off")
