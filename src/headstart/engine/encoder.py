"""The `Engine` of a model that only embeds: it has no cache and generates nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.engine.filters import LlamaFilters
from headstart.engine.model import Model
from headstart.types import Batch, CacheKind, Filters, Logits, SavedSequence
from headstart.types.errors import EngineError, ModelError, NotSupportedError
from headstart.types.sampling_params import SamplingParams


class EncoderEngine:
    """An engine without a cache that decodes nothing, for the scheduler of an embedding server."""

    padding_sequence: int | None = None
    sends_graphs = is_asynchronous = False
    attention_tile = 1
    cache_kind = CacheKind.CUT
    max_rollback = 0
    can_shift = False
    max_outputs = 1

    def __init__(self, model: Model, max_tokens: int) -> None:
        """`max_tokens`: of a text that the model embeds."""
        self.model = model
        self.vocab_size = model.vocab.size
        self.context_size = self.num_cells = self.max_batch_tokens = max_tokens

    @property
    def why_no_text(self) -> str:
        """Error for requests that need text generation."""
        return f"{self.model.facts.architecture} models compute embeddings and generate no text"

    def decode(self, batch: Batch) -> Logits:
        raise EngineError(self.why_no_text)

    def launch(self, batch: Batch) -> None:
        raise EngineError(self.why_no_text)

    def wait(self) -> Logits:
        raise EngineError(self.why_no_text)

    def publish_states(self, layers: Collection[int]) -> None:
        raise ModelError(self.why_no_text)

    def hidden_states(self) -> Mapping[int, NDArray[np.float32]]:
        return {}

    def truncate(self, seq_id: int, length: int) -> bool:
        return length == 0

    def shift(self, seq_id: int, start: int, end: int) -> bool:
        return False

    def reusable(self, seq_id: int, length: int, *, by_copy: bool = False) -> int:
        return 0

    def rewind(self, seq_id: int, length: int) -> int:
        return 0

    def checkpoint(self, seq_id: int) -> None:
        return

    def keep_for_draft(self, seq_id: int) -> bool:
        return False

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        return False

    def share_prefix(self, source: int, target: int, length: int) -> None:
        return

    def clear(self, seq_id: int) -> None:
        return

    def save_sequence(self, seq_id: int) -> bytearray:
        return bytearray()

    def restore_sequence(self, seq_id: int, data: bytes | bytearray | memoryview) -> bool:
        return False

    def write_sequence(self, seq_id: int, path: Path, tokens: Sequence[int], num_exact: int) -> int:
        raise NotSupportedError(self.why_no_text)

    def read_sequence(self, seq_id: int, path: Path) -> SavedSequence:
        raise NotSupportedError(self.why_no_text)

    def make_filters(self, params: SamplingParams) -> Filters:
        return LlamaFilters(self.model.vocab, self.model.facts.train_context, params)
