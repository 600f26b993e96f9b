"""Everything that can be set, once: names, defaults, flags and help.

The command line, the environment names (HEADSTART_<FIELD>), the table in docs/flags.md and
`--print-config` are generated from these fields. A field's flag is `--field-name`; `aliases` add
the spellings that llama-server's users type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.config_chat import ChatConfig as ChatConfig
from headstart.config_fields import check_at_least
from headstart.config_fields import option as option
from headstart.errors import ConfigError
from headstart.types import SequenceMode

# tokens a step
DEFAULT_DRAFT_MAX = {SequenceMode.FIXED: 16, SequenceMode.AUTO: 32, SequenceMode.OFF: 0}
# tokens; libllama takes no batch larger than the context, and ours are at least so large
LEAST_CONTEXT = 64
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
# values of the others can only be read by flash attention
PLAIN_CACHE_TYPES = ("f32", "f16", "bf16")
# llama-server's names: what is called otherwise here, and what is not built.
SPECULATOR_ALIASES = {"draft-simple": "draft-model"}
MULTI_TOKEN_HEADS = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Where the target model comes from."""

    model: str | None = option(
        None,
        "GGUF file of the target model (first part of a split one); the embedded demo model if "
        "absent",
        "-m",
    )
    hf_repo: str | None = option(
        None, "target model from the Hugging Face hub: user/repo[:quant]", "-hf", "-hfr"
    )
    hf_file: str | None = option(None, "file in --hf-repo, instead of choosing by quant", "-hff")
    hf_token: str | None = option(
        None, "access token of the hub (also HF_TOKEN)", "-hft", secret=True
    )
    offline: bool = option(False, "never use the network; take models from the cache only")
    draft_model: str | None = option(
        None,
        "GGUF file of a draft model; enough to use it",
        "-md",
        "--model-draft",
        "--spec-draft-model",
    )
    draft_hf_repo: str | None = option(
        None,
        "draft model from the hub: user/repo[:quant]",
        "-hfd",
        "-hfrd",
        "--hf-repo-draft",
        "--spec-draft-hf",
    )
    alias: str | None = option(None, "model name that the API shows", "-a")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How a model is loaded and run. Built twice: for the target and for the draft model."""

    threads: int | None = option(
        None, "CPU threads while generating; default: physical cores", "-t"
    )
    threads_batch: int | None = option(
        None, "CPU threads while reading prompts; default: as --threads", "-tb"
    )
    gpu_layers: int = option(-1, "layers on the GPU; -1 for all", "-ngl", "--n-gpu-layers")
    device: str | None = option(
        None,
        "devices to use, by name and separated by commas (see `headstart devices`); none = CPU",
        "-dev",
    )
    split_mode: str = option(
        "layer", "how to split over devices", "-sm", choices=("none", "layer", "row", "tensor")
    )
    main_gpu: int = option(
        0, "number of the device, from 0, that holds the model with --split-mode none", "-mg"
    )
    tensor_split: str | None = option(
        None, "share of the model per device, for instance 3,1", "-ts"
    )
    cache_type_k: str = option("f16", "type of the cached keys", "-ctk", choices=CACHE_TYPES)
    cache_type_v: str = option("f16", "type of the cached values", "-ctv", choices=CACHE_TYPES)
    flash_attn: str = option("auto", "flash attention", "-fa", choices=("auto", "on", "off"))
    context: int = option(
        0,
        "tokens of context in the cache, shared by all slots; 0 = what the model was trained with",
        "-c",
        "--ctx-size",
    )
    batch: int = option(2048, "most tokens in one decode call", "-b", "--batch-size")
    ubatch: int = option(512, "most tokens computed at once", "-ub", "--ubatch-size")
    swa_full: bool = option(
        False,
        "keep the whole context in layers with a sliding window, not only what they can see: "
        "several times the memory, any prompt can be continued anywhere",
    )
    ctx_checkpoints: int = option(
        32,
        "most states kept of a slot whose cache cannot be cut back anywhere (recurrent layers, "
        "sliding windows), so that an edited history is not read again from the start",
        "-ctxcp",
        "--swa-checkpoints",
    )
    mmap: bool = option(True, "map the model file into memory instead of reading it")
    mlock: bool = option(False, "keep the model in RAM")
    deterministic: bool = option(
        False,
        "bit-identical logits whatever shares the batch (CPU; slower prompts, one cache per slot)",
    )

    def __post_init__(self) -> None:
        if self.context:  # 0: as trained
            check_at_least(self, "context", LEAST_CONTEXT)
        check_at_least(self, "batch", 2)
        check_at_least(self, "ubatch", 2)
        check_at_least(self, "gpu_layers", -1)
        check_at_least(self, "ctx_checkpoints", 0)
        for name in ("threads", "threads_batch"):
            if getattr(self, name) is not None:
                check_at_least(self, name, 1)
        if self.cache_type_v not in PLAIN_CACHE_TYPES and self.flash_attn == "off":
            raise ConfigError(
                f"--cache-type-v {self.cache_type_v} needs flash attention; drop --flash-attn off"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftEngineConfig:
    """What may differ for the draft model; None means as for the target."""

    draft_threads: int | None = option(
        None,
        "CPU threads of the draft model while drafting",
        "-td",
        "--threads-draft",
        "--spec-draft-threads",
    )
    draft_threads_batch: int | None = option(
        None,
        "CPU threads of the draft model while reading prompts",
        "-tbd",
        "--threads-batch-draft",
        "--spec-draft-threads-batch",
    )
    draft_gpu_layers: int | None = option(
        None,
        "layers of the draft model on the GPU; -1 for all",
        "-ngld",
        "--gpu-layers-draft",
        "--n-gpu-layers-draft",
        "--spec-draft-ngl",
    )
    draft_device: str | None = option(
        None, "devices of the draft model", "-devd", "--device-draft", "--spec-draft-device"
    )
    draft_cache_type_k: str | None = option(
        None,
        "type of the draft model's cached keys",
        "-ctkd",
        "--cache-type-k-draft",
        "--spec-draft-type-k",
        choices=CACHE_TYPES,
    )
    draft_cache_type_v: str | None = option(
        None,
        "type of the draft model's cached values",
        "-ctvd",
        "--cache-type-v-draft",
        "--spec-draft-type-v",
        choices=CACHE_TYPES,
    )
    draft_context: int | None = option(
        None, "tokens of context of the draft model", "-cd", "--ctx-size-draft"
    )

    def __post_init__(self) -> None:
        least = {"threads": 1, "threads_batch": 1, "gpu_layers": -1, "context": LEAST_CONTEXT}
        for name, minimum in least.items():
            if getattr(self, f"draft_{name}") is not None:
                check_at_least(self, f"draft_{name}", minimum)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one worker."""

    parallel: int = option(4, "slots: requests generated at the same time", "-np", "--num-slots")
    max_queue: int = option(256, "requests that may wait before new ones get 503")
    prefill_chunk: int = option(
        64, "prompt tokens read per step while others generate; bounds how long they wait"
    )
    checkpoint_min_step: int = option(
        1024,
        "prompt tokens between two checkpoints (see --ctx-checkpoints); the ends of the first and "
        "of the last message get one in any case",
        "-cms",
    )
    cache_prompt: bool = option(True, "reuse the longest known prefix of a prompt")

    def __post_init__(self) -> None:
        check_at_least(self, "parallel", 1)
        check_at_least(self, "max_queue", 0)
        check_at_least(self, "prefill_chunk", 1)
        check_at_least(self, "checkpoint_min_step", 1)
        if self.parallel > 250:
            raise ConfigError(
                f"--parallel is {self.parallel} but libllama holds at most 250 sequences here"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Which speculators draft and how far."""

    spec: str | None = option(
        None,
        "auto: draft where it pays; fixed: always draft up to --draft-max; off. Default: auto",
        choices=tuple(m.value for m in SequenceMode),
    )
    spec_type: str | None = option(
        None,
        "speculators in order of preference, separated by commas, or none (see "
        "docs/speculators.md)",
    )
    draft_max: int | None = option(
        None,
        "most draft tokens a step, of any speculator (default 16; with --spec auto an upper limit, "
        "default 32)",
        "--draft",
        "--draft-n",
        "--spec-draft-n-max",
    )
    draft_min: int = option(
        0, "drop drafts of fewer tokens than this", "--draft-n-min", "--spec-draft-n-min"
    )
    draft_p_min: float = option(
        0.0,
        "a draft model stops before a token less likely than this (0 to 1)",
        "--spec-draft-p-min",
    )
    spec_replace: str | None = option(
        None,
        "rewrite a marker of the target (TARGET) into one of a draft model with another chat "
        "template (DRAFT), "
        "for instance '<start_of_turn>user' '<|im_start|>user'; repeatable (elsewhere: one 'TARGET "
        "=> DRAFT' a line)",
    )
    spec_state: str | None = option(
        None,
        "file that keeps what control learned for the next start; none: keep nothing. Default: in "
        "the cache folder",
    )
    options: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # of speculators, by name: --spec-<name>-<option>

    def __post_init__(self) -> None:
        check_at_least(self, "draft_min", 0)
        if self.draft_max is not None:
            check_at_least(self, "draft_max", 0)
        longest = self.longest_draft(self.mode)
        if self.mode is not SequenceMode.OFF and self.draft_min > longest:
            raise ConfigError(
                f"--draft-min is {self.draft_min} but no draft is longer than {longest} tokens; "
                "lower it or raise "
                "--draft-max"
            )
        if not 0.0 <= self.draft_p_min <= 1.0:
            raise ConfigError(f"--draft-p-min is {self.draft_p_min} but must be from 0 to 1")

    @property
    def mode(self) -> SequenceMode:
        """What requests get that do not say otherwise."""
        return SequenceMode(self.spec) if self.spec else SequenceMode.AUTO

    def longest_draft(self, mode: SequenceMode) -> int:
        """Most draft tokens a step in this mode."""
        return DEFAULT_DRAFT_MAX[mode] if self.draft_max is None else self.draft_max


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP side."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8080, "port to listen on; 0 takes a free one")
    api_key: str | None = option(
        None, "key that clients must send; several separated by commas", secret=True
    )
    api_key_file: str | None = option(
        None, "file with one key a line; lines that start with # are comments"
    )
    allowed_hosts: str | None = option(
        None,
        "without an API key: host names, separated by commas, under which the server may be asked "
        "besides localhost, addresses, names without a dot and this machine's; * for any",
    )
    cors_origins: str | None = option(
        None,
        "origins, separated by commas, whose web pages may use the server; localhost for those of "
        "this machine, * for any. Default: its own page only",
    )
    max_connections: int = option(
        1000, "open connections; beyond them the longest idle one is closed, or new ones get 503"
    )
    chat_template: str | None = option(
        None, "chat template instead of the model's: Jinja text, or llama-server's name of one"
    )
    chat_template_file: str | None = option(None, "file with a Jinja chat template")
    max_body_mb: int = option(4, "largest accepted request body in MiB")
    timeout: int = option(
        3600,
        "seconds after which an idle connection is closed; at most 30 for the head of a request, "
        "60 for the next piece of its body or for a client that does not read",
        "-to",
    )
    page: bool = option(True, "serve the page at /", "--webui", "--ui")
    path: str | None = option(None, "folder with another page to serve at /, instead of ours")
    slots: bool = option(True, "serve /slots")
    metrics: bool = option(True, "serve /metrics")
    log_level: str = option(
        "info", "how much to log", choices=("debug", "info", "warning", "error")
    )
    verbose: bool = option(False, "as --log-level debug", "-v", "--log-verbose")

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port is {self.port} but must be from 0 to 65535")
        check_at_least(self, "max_body_mb", 1)
        check_at_least(self, "max_connections", 1)
        check_at_least(self, "timeout", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of it, composed: each part is handed only to those who need it."""

    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    draft_engine: DraftEngineConfig = DraftEngineConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    chat: ChatConfig = field(default_factory=ChatConfig)
    server: ServerConfig = ServerConfig()

    def __post_init__(self) -> None:
        draft_type = self.draft_engine.draft_cache_type_v
        if draft_type not in (None, *PLAIN_CACHE_TYPES) and self.engine.flash_attn == "off":
            raise ConfigError(
                f"--draft-cache-type-v {draft_type} needs flash attention; drop --flash-attn off"
            )
