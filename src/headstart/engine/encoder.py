"""The `Engine` of a model that only embeds: it has no cache and generates nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from headstart.engine.filters import LlamaFilters
from headstart.engine.model import Model
from headstart.types import Batch, CacheKind, Filters
from headstart.types.errors import EngineError, NotSupportedError
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

    def launch(self, batch: Batch) -> None:
        raise EngineError(self.why_no_text)

    def truncate(self, seq_id: int, length: int) -> bool:
        return length == 0

    def reusable(self, seq_id: int, length: int, *, by_copy: bool = False) -> int:
        return 0

    def rewind(self, seq_id: int, length: int) -> int:
        return 0

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        return False

    def clear(self, seq_id: int) -> None:
        return

    def make_filters(self, params: SamplingParams) -> Filters:
        return LlamaFilters(self.model.vocab, self.model.facts.train_context, params)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """What else an `Engine` does needs a cache that holds something."""
        if name.startswith("_"):
            raise AttributeError(name)

        def refuse(*given: Any, **more: Any) -> NoReturn:
            raise NotSupportedError(self.why_no_text)

        return refuse
