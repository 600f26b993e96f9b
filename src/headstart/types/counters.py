"""Sums over the life of a scheduler, for /metrics."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.types.request import RequestStats


@dataclass(slots=True)
class Counters:
    """Plain sums; times in seconds."""

    requests: int = 0
    requests_failed: int = 0
    prompt_tokens: int = 0  # decoded
    prompt_tokens_cached: int = 0
    prompt_seconds: float = 0.0
    tokens_predicted: int = 0
    predicted_seconds: float = 0.0
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
    target_seconds: float = 0.0  # of steps, in the target's decodes
    draft_seconds: float = 0.0  # of steps, before the decode: drafting, and admitting requests
    other_seconds: float = 0.0  # of steps, after it: sampling, counting, speculators' learning

    @property
    def mean_seconds(self) -> float:
        """Of a request in its slot; 1 before any ended."""
        seconds = self.prompt_seconds + self.predicted_seconds
        return seconds / self.requests if self.requests else 1.0

    def add_request(self, stats: RequestStats) -> None:
        self.requests += 1
        self.prompt_tokens += stats.num_prompt - stats.num_cached - stats.num_unread
        self.prompt_tokens_cached += stats.num_cached
        self.prompt_seconds += stats.prompt_seconds
        self.tokens_predicted += stats.num_emitted
        self.predicted_seconds += stats.generation_seconds
        self.near_ties += stats.num_near_ties
        self.max_tokens_in_cache = max(
            self.max_tokens_in_cache, stats.num_prompt + stats.num_emitted
        )
