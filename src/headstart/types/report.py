"""Reports of a worker: for /props, /slots, /metrics and the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.types import ModelInfo
from headstart.types.request import RequestStats
from headstart.types.speculation_stats import SpeculationStats


@dataclass(slots=True)
class Counters:
    """Plain sums; times in seconds."""

    requests: int = 0
    requests_failed: int = 0
    prompt_tokens: int = 0  # decoded ones
    prompt_tokens_cached: int = 0
    prompt_seconds: float = 0.0
    tokens_predicted: int = 0
    predicted_seconds: float = 0.0
    slot_seconds: float = 0.0  # of requests, in their slots
    prefill_rows: int = 0  # of steps with many prompt rows, see `CopyPrices`
    prefill_seconds: float = 0.0  # the target's, of these steps
    near_ties: int = 0
    num_decodes: int = 0
    busy_slots: int = 0  # summed over decodes
    padding_rows: int = 0
    max_tokens_in_cache: int = 0
    preemptions: int = 0
    prompts_saved: int = 0  # to main memory
    prompts_restored: int = 0  # from there
    prompt_tokens_restored: int = 0
    embedding_requests: int = 0
    embedded_tokens: int = 0
    target_seconds: float = 0.0  # of steps, during the target's decodes
    draft_seconds: float = 0.0  # of steps, before the decode: drafting, and admitting requests
    other_seconds: float = 0.0  # of steps, after the decode: sampling, counting, learning

    @property
    def step_seconds(self) -> Mapping[str, float]:
        parts = ("target", "draft", "other")
        return {part: getattr(self, f"{part}_seconds") for part in parts}

    @property
    def mean_seconds(self) -> float:
        """Mean time of a request in its slot; 1 before any ended."""
        return self.slot_seconds / self.requests if self.requests else 1.0

    def add_request(self, stats: RequestStats) -> None:
        self.requests += 1
        self.prompt_tokens += stats.num_prompt - stats.num_cached - stats.num_unread
        self.prompt_tokens_cached += stats.num_cached
        self.prompt_seconds += stats.prompt_seconds
        self.tokens_predicted += stats.num_emitted
        self.predicted_seconds += stats.generation_seconds
        self.slot_seconds += stats.prompt_seconds + stats.generation_seconds
        self.near_ties += stats.num_near_ties
        self.max_tokens_in_cache = max(
            self.max_tokens_in_cache, stats.num_prompt + stats.num_emitted
        )


@dataclass(frozen=True, slots=True)
class EmbeddingInfo:
    """Embedding settings of a worker."""

    size: int  # numbers of a vector
    max_tokens: int  # of one text
    pooling: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """Fixed facts of a loaded worker."""

    target: ModelInfo
    draft: ModelInfo | None
    num_slots: int
    context_size: int  # maximum length of one request, prompt and answer
    max_batch_tokens: int  # most tokens in one decode
    speculation: Mapping[str, Any]  # mode, types, and reasons for what is off; JSON-ready
    system: str  # libllama's build and processor features
    max_requests: int  # of one tenant, running and waiting
    embedding: EmbeddingInfo | None = None  # None: no embeddings
    why_no_text: str = ""  # for models that only embed
    modalities: tuple[str, ...] = ()  # besides text: "image", "audio"
    # of LoRA: path, initial scale, ...; JSON-ready
    adapters: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReport:
    """One slot's current state. Counts of tokens."""

    slot_id: int
    request_id: str = ""
    is_processing: bool = False
    num_prompt: int = 0
    num_processed: int = 0  # prompt tokens in the cache
    num_cached: int = 0  # of these, reused
    num_in_cache: int = 0  # tokens of this slot in the KV cache
    num_emitted: int = 0
    max_tokens: int | None = None
    drafts: SpeculationStats = field(default_factory=SpeculationStats)
    by_speculator: Mapping[str, SpeculationStats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorReport:
    """One speculator's work since the start. Times in seconds."""

    name: str
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    seconds: Mapping[str, float] = field(default_factory=dict)  # begin, propose, observe, accept
    failure: str = ""  # why it was switched off
    details: Mapping[str, Any] = field(default_factory=dict)  # its own `describe()`

    @property
    def has_failed(self) -> bool:
        """Read by server/metrics.txt."""
        return bool(self.failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskReport:
    """Prompts on the disk, for this model and its settings."""

    folder: str = ""  # empty: none are kept
    max_bytes: int = 0  # of all models
    num_prompts: int = 0
    num_bytes: int = 0
    num_written: int = 0  # since the start, as all below
    num_restored: int = 0
    num_tokens_restored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """Counts since the start, and the current state."""

    num_processing: int = 0
    num_waiting: int = 0
    counters: Counters = field(default_factory=Counters)
    last_read: Counters = field(default_factory=Counters)  # at the last read of /metrics
    drafts: SpeculationStats = field(default_factory=SpeculationStats)  # of all speculators
    engine_restarts: int = 0
    prompts_in_memory: int = 0  # prompts evicted from the model's cache
    prompt_bytes_in_memory: int = 0
    disk: DiskReport = field(default_factory=DiskReport)
    slots: tuple[SlotReport, ...] = ()
    speculators: tuple[SpeculatorReport, ...] = ()
    memory_bytes: int = 0  # resident in the engine's process
    refusals: Mapping[str, int] = field(default_factory=dict)  # of requests, by quota
    control: Mapping[str, Any] = field(default_factory=dict)  # costs and acceptance, JSON-ready
