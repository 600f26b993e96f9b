"""What a worker tells about itself: for /props, /slots, /metrics and the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.scheduler.request import DraftCounts
from headstart.types import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """Fixed facts of a loaded worker."""

    target: ModelInfo
    draft: ModelInfo | None
    num_slots: int
    context_size: int  # most tokens of one request, prompt and answer
    max_batch_tokens: int  # most tokens in one decode
    speculation: Mapping[str, Any]  # mode, types, and why something is off; JSON-ready
    system: str  # libllama's build and processor features


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReport:
    """One slot now. Counts of tokens."""

    slot_id: int
    request_id: str = ""
    is_processing: bool = False
    num_prompt: int = 0
    num_processed: int = 0  # prompt tokens in the cache
    num_cached: int = 0  # of them, reused
    num_in_cache: int = 0  # tokens of this slot in the KV cache
    num_emitted: int = 0
    max_tokens: int | None = None
    num_drafted: int = 0
    num_accepted: int = 0
    drafted_by: Mapping[str, DraftCounts] = field(default_factory=dict)  # by speculator
    reasons: Mapping[str, int] = field(default_factory=dict)  # why steps had no draft -> steps


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorReport(DraftCounts):
    """One speculator since the start. Times in seconds."""

    name: str
    seconds: Mapping[str, float] = field(default_factory=dict)  # begin, propose, observe, accept
    failure: str = ""  # why it was switched off
    details: Mapping[str, Any] = field(default_factory=dict)  # its own `describe()`


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """Counters since the start (of tokens, requests, decodes; seconds) and the present state."""

    num_processing: int = 0
    num_waiting: int = 0
    requests: int = 0
    requests_failed: int = 0
    prompt_tokens: int = 0  # decoded
    prompt_tokens_cached: int = 0
    prompt_seconds: float = 0.0
    tokens_predicted: int = 0
    predicted_seconds: float = 0.0
    num_decodes: int = 0
    busy_slots: int = 0  # summed over decodes
    max_tokens_in_cache: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()
    preemptions: int = 0
    engine_restarts: int = 0
    slots: tuple[SlotReport, ...] = ()
    speculators: tuple[SpeculatorReport, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)  # why steps had no draft -> slot steps
    # cost table and calibration, JSON-ready
    control: Mapping[str, Any] = field(default_factory=dict)
