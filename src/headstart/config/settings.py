"""Everything that can be set, once: names, defaults, flags and help.

The command line, the environment names (HEADSTART_<FIELD>), the table in docs/flags.md and
`--print-config` are generated from these fields. A field's flag is `--field-name`; `aliases` add
the spellings that llama-server's users type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.config.chat import ChatConfig, SamplingConfig
from headstart.config.engine import (
    PLAIN_CACHE_TYPES,
    DraftEngineConfig,
    EmbeddingConfig,
    EngineConfig,
)
from headstart.config.fields import check_ranges, option
from headstart.config.images import ImageConfig
from headstart.config.logs import LogConfig
from headstart.config.recording import RecordingConfig
from headstart.config.router import RouterConfig
from headstart.config.tools import ToolsConfig
from headstart.types import DraftMode
from headstart.types.errors import ConfigError

# llama-server's names of what is called otherwise here
SPECULATOR_ALIASES = {
    "draft-simple": "draft-model",
    "draft-mtp": "mtp",
    "draft-eagle3": "eagle3",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Where the target model comes from."""

    model: str | None = option(
        None,
        "GGUF file of the target model (first part of a split one); default: the embedded demo "
        "model",
    )
    hf_repo: str | None = option(None, "target model from the Hugging Face hub: user/repo[:quant]")
    hf_file: str | None = option(None, "file in --hf-repo, instead of choosing by quant")
    hf_token: str | None = option(None, "access token for the hub (also HF_TOKEN)", is_secret=True)
    offline: bool = option(False, "never use the network; take models from the cache only")
    draft_model: str | None = option(
        None, "GGUF file of a draft model, which is then used", "--model-draft"
    )
    draft_hf_repo: str | None = option(
        None, "draft model from the hub: user/repo[:quant]", "--hf-repo-draft"
    )
    alias: str | None = option(
        None, "model name shown by the API; several separated by commas", for_router=True
    )
    tags: str | None = option(
        None, "tags of the model in /v1/models, separated by commas", for_router=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one worker."""

    parallel: int = option(
        4, "slots: requests generated at the same time", "--num-slots", least=1, words={"-1": None}
    )
    max_queue: int = option(256, "requests that may wait before new ones get 503", least=0)
    prefill_chunk: int = option(
        256,
        "prompt tokens that a step may always process while other requests generate; on a CPU "
        "up to 63 more or fewer, to fill tiles of 64 rows",
        least=1,
    )
    prefill_ms: float = option(
        100.0,
        "milliseconds that a step may take to process more prompt tokens than --prefill-chunk, "
        "while other requests wait for their next token",
        least=0,
    )
    checkpoint_min_step: int = option(
        1024,
        "prompt tokens between two checkpoints (see --ctx-checkpoints); there is always one at "
        "the end of the first and of the last message",
        least=1,
    )
    kv_unified: bool = option(
        True,
        "each request may use the whole context that the slots share; off: only its slot's "
        "share, so that no request waits for another's cells; off by default where both --context "
        "and --parallel are given",
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
        "shortest piece of a cached prompt, in tokens, that is shifted to another position in a "
        "new prompt; faster, but the answer may differ slightly; 0 shifts none",
        least=0,
    )
    context_shift: bool = option(
        False,
        "when a text fills the context, drop its older half and continue; without it the text "
        "ends there",
    )
    keep: int = option(
        0,
        "tokens at the beginning of a text that --context-shift never drops; -1: the prompt",
        least=-1,
    )
    cache_ram: int = option(
        8192,
        "maximum MiB of main memory for prompts that are moved out of the cache, and never more "
        "than half of the free memory; 0: none",
        least=0,
    )
    cache_disk: int = option(
        0,
        "maximum MiB of disk for prompts, all models and servers together, so that a restart, a "
        "sleep or an unloaded model costs no reading again; needs --cache-ram; 0: none, the "
        "default but for models of a router (10240)",
        least=0,
    )
    cache_disk_path: str | None = option(
        None, "folder for --cache-disk; default: prompts, in the cache directory"
    )
    cache_idle_slots: bool = option(
        True,
        "when a request comes, move the prompts of idle slots to main memory (see --cache-ram), "
        "so that attention covers fewer cells; on a CPU only",
    )

    def __post_init__(self) -> None:
        check_ranges(self)
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
        choices=tuple(m.value for m in DraftMode),
    )
    spec_type: str | None = option(
        None,
        "speculators in order of preference, separated by commas, or none (see "
        "docs/speculators.md)",
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
        "file that keeps what control learned for the next start; none: keep nothing. Default: "
        "in the cache directory",
    )
    options: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # of speculators, by name: --spec-<name>-<option>

    def __post_init__(self) -> None:
        check_ranges(self)
        longest = self.longest_draft(self.mode)
        if self.mode is not DraftMode.OFF and self.draft_min > longest:
            raise ConfigError(
                f"--draft-min is {self.draft_min} but no draft is longer than {longest} tokens; "
                "lower it or raise "
                "--draft-max"
            )

    @property
    def mode(self) -> DraftMode:
        """What requests get that do not say otherwise."""
        return DraftMode(self.spec) if self.spec else DraftMode.AUTO

    def longest_draft(self, mode: DraftMode) -> int:
        """Most draft tokens a step in this mode."""
        if self.draft_max is not None:
            return self.draft_max
        return {DraftMode.FIXED: 16, DraftMode.AUTO: 32, DraftMode.OFF: 0}[mode]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP side."""

    host: str = option(
        "127.0.0.1",
        "addresses to listen on, separated by commas; one that ends in .sock is a Unix socket",
        for_router=True,
    )
    port: int = option(
        8080, "port to listen on; 0 picks a free one", least=0, most=65535, for_router=True
    )
    reuse_port: bool = option(False, "let other processes listen on the same port", for_router=True)
    api_prefix: str = option("", "prefix of all paths, for instance /llm", for_router=True)
    ssl_key_file: str | None = option(
        None, "file with the private key for HTTPS, in PEM format", for_router=True
    )
    ssl_cert_file: str | None = option(
        None, "file with the certificate for HTTPS, in PEM format", for_router=True
    )
    api_key: str | None = option(
        None,
        "key that clients must send; several separated by commas",
        is_secret=True,
        for_router=True,
    )
    api_key_file: str | None = option(
        None, "file with one key per line; lines that start with # are comments", for_router=True
    )
    allowed_hosts: str | None = option(
        None,
        "without an API key: host names, separated by commas, that requests may name besides "
        "localhost, IP addresses, names without a dot and this machine's name; * for any",
        for_router=True,
    )
    cors_origins: str | None = option(
        None,
        "origins, separated by commas, whose web pages may use the server; localhost for pages "
        "from this machine, * for any. Default: any with an API key, else only the server's own "
        "page; localhost with a key and --tools or MCP servers",
        for_router=True,
    )
    cors_methods: str = option(
        "GET, POST, DELETE, OPTIONS",
        "methods that pages from --cors-origins may use",
        for_router=True,
    )
    cors_headers: str = option(
        "*",
        "request headers that these pages may send, separated by commas; * for all",
        for_router=True,
    )
    cors_credentials: bool = option(
        True,
        "let these pages send credentials; without it, answers to any page (*) name no origin",
        for_router=True,
    )
    max_connections: int = option(
        1000,
        "open connections; beyond that the longest idle one is closed, or new ones get 503",
        least=1,
    )
    chat_template: str | None = option(
        None,
        "chat template to use instead of the model's: Jinja text, or llama-server's name of one",
    )
    chat_template_file: str | None = option(None, "file with a Jinja chat template")
    sse_ping_interval: int = option(
        30, "seconds between comments in a silent stream; 0 or -1: none", least=-1
    )
    max_body_mb: int = option(
        4, "largest accepted request body in MiB; with --mmproj at least 64", least=1
    )
    timeout: int = option(
        3600,
        "seconds after which an idle connection is closed; at most 30 for the head of a request "
        "and 60 for the next piece of its body or for a client that does not read",
        least=1,
    )
    sleep_idle_seconds: int = option(
        -1,
        "seconds without a request after which the model is unloaded until the next one; -1: never",
        least=-1,
    )
    page: bool = option(True, "serve the page at /", "--webui", for_router=True)
    path: str | None = option(None, "folder with another page to serve at /", for_router=True)
    slots: bool = option(True, "serve /slots")
    slot_save_path: str | None = option(
        None, "folder for POST /slots/{id}?action=save and restore, which need it"
    )
    image_urls: bool = option(
        False, "fetch images that requests name by http or https URLs of public addresses"
    )
    media_path: str | None = option(None, "folder of images that requests may name, as file://name")
    metrics: bool = option(True, "serve /metrics")
    props: bool = option(False, "accept POST /props")
    tenant_header: str | None = option(
        None,
        "header in which a proxy with the API key names the tenant of a request; tenants are "
        "kept apart as API keys are. Default: each key is a tenant",
        for_router=True,
    )
    tenant_slot_files: int = option(
        1000,
        "files that one tenant may have in --slot-save-path; new ones then get 429",
        least=0,
    )
    tenant_slot_files_mb: int = option(
        102_400,
        "MiB of one tenant's files in --slot-save-path from which on saves get 429",
        least=0,
    )
    log_level: str = option(
        "info", "how much to log", choices=("debug", "info", "warning", "error")
    )
    verbose: bool = option(False, "same as --log-level debug")

    def __post_init__(self) -> None:
        check_ranges(self)
        if bool(self.ssl_key_file) != bool(self.ssl_cert_file):
            raise ConfigError("HTTPS needs both --ssl-key-file and --ssl-cert-file")
        if self.api_prefix and not self.api_prefix.startswith("/"):
            raise ConfigError(
                f"--api-prefix is {self.api_prefix!r} but must start with a slash, as /llm"
            )


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
    server: ServerConfig = ServerConfig()
    router: RouterConfig = field(default_factory=RouterConfig)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    recording: RecordingConfig = field(default_factory=RecordingConfig)

    def __post_init__(self) -> None:
        draft_type = self.draft_engine.draft_cache_type_v
        if draft_type not in (None, *PLAIN_CACHE_TYPES) and self.engine.flash_attn == "off":
            raise ConfigError(
                f"--draft-cache-type-v {draft_type} needs flash attention; drop --flash-attn off"
            )
