"""Embeddings: a second context of a model, which keeps nothing between decodes.

With pooling libllama makes one vector from all tokens of a sequence, so a text must be computed in
one micro-batch, unless pooling takes the last token's vector of a causal model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from headstart.config import POOLINGS, EmbeddingConfig, EngineConfig
from headstart.engine.adapters import Adapters
from headstart.engine.c_batch import c_batch, floats_at
from headstart.engine.gguf_header import GgufHeader
from headstart.engine.library import api, libllama_error, take_errors
from headstart.engine.media import LlamaChunk
from headstart.engine.model import Model
from headstart.engine.parameters import embedding_params
from headstart.types import Batch, CacheKind, Rows
from headstart.types.errors import EngineError, ModelError, NotSupportedError
from headstart.types.media import LoadedChunk
from headstart.types.sampling_params import SamplingParams


class LlamaEmbedder:
    """A model that turns texts into vectors, or with the pooling `rank` into scores."""

    def __init__(self, model: Model, config: EngineConfig, wanted: EmbeddingConfig) -> None:
        """Create the context.

        Raises:
            ModelError: libllama cannot create it, or the model does not have what is asked for.
        """
        self.model = model
        is_ranking = wanted.rerank or wanted.pooling == "rank"
        if is_ranking and not _has_head(model.path):
            raise ModelError(
                f"{model.path.name} cannot rank: it has no classification head; serve a reranker, "
                "or drop --rerank"
            )
        asked = "rank" if is_ranking else wanted.pooling
        params = embedding_params(model.facts, config)
        params.pooling_type = -1 if asked is None else POOLINGS.index(asked)
        take_errors()
        self._handle: Any = api.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise libllama_error(ModelError, f"no context for embeddings of {model.path}")
        finalize(self, api.llama_free, self._handle)
        Adapters(model, self._handle, config)
        self._memory = api.llama_get_memory(self._handle)
        self.pooling = POOLINGS[api.llama_pooling_type(self._handle)]
        self.size = int(
            api.llama_model_n_cls_out(model.handle)
            if self.pooling == "rank"
            else api.llama_model_n_embd_out(model.handle)
        )
        self.max_batch_tokens = int(params.n_batch)
        self.max_batch_texts = int(params.n_seq_max)
        architecture = model.facts.architecture
        is_causal = model.metadata().get(f"{architecture}.attention.causal") != "false"
        # only the last token's vector is used, and it attends to all tokens before it
        reads_last = self.pooling == "last" or (self.pooling == "rank" and is_causal)
        self.can_split = bool(self._memory) and reads_last
        self.why_no_media = (
            "" if self._memory and is_causal else f"{model.path.name} embeds no images"
        )
        # of a text decoded in pieces: vectors with their numbers of tokens, and by how much the
        # cells of its images outnumber their positions
        self._pieces: list[tuple[NDArray[np.float32], int]] = []
        self._gap = 0
        longest = api.llama_n_ctx_seq(self._handle) if self.can_split else params.n_batch
        # positions beyond the training context abort if the model has a table of them
        self.max_tokens = min(int(longest), model.facts.train_context)
        self._batch = Batch(self.max_batch_tokens)

    def embed(
        self,
        texts: Sequence[Sequence[int]],
        position: int = 0,
        *,
        chunk: LoadedChunk | None = None,
        is_end: bool = True,
    ) -> list[NDArray[np.float32]]:
        """One matrix per text: one row, or one per token without pooling.

        Args:
            position: of the first token, if a single text continues from the previous call.
            chunk: the image chunk whose cells the tokens are, for a single text.
            is_end: the texts end here; otherwise only vectors of tokens are returned.

        Raises:
            EngineError: libllama failed; nothing is kept.
        """
        if not position:
            self._pieces, self._gap = [], 0
            if self._memory:  # the previous text may have been abandoned
                api.llama_memory_clear(self._memory, False)
        position -= self._gap
        if isinstance(chunk, LlamaChunk):
            batch: Batch = chunk.rows(0, position, position, 0, texts[0])
            batch.wants_logits[: batch.num_rows] = 1
            self._gap += chunk.num_cells - chunk.num_positions
            api.llama_set_causal_attn(self._handle, chunk.is_causal)
        else:
            batch = self._batch
            batch.clear()
            for seq_id, text in enumerate(texts):
                batch.add(seq_id, position, text, len(text))
        try:
            status = api.llama_decode(self._handle, c_batch(batch))
            if status != 0:
                is_end = True
                words = f"llama_decode returned {status} for {batch.num_rows} tokens to embed"
                raise libllama_error(EngineError, words)
            vectors = self._vectors(texts)
            if len(texts) > 1 or self.pooling == "none":
                return vectors
            self._pieces.append((vectors[0], batch.num_rows))
            return [self._whole()] if is_end else []
        finally:
            if chunk is not None:
                api.llama_set_causal_attn(self._handle, True)
            if is_end and self._memory:
                api.llama_memory_clear(self._memory, False)

    def _whole(self) -> NDArray[np.float32]:
        """The vector of a text decoded in pieces."""
        vectors, counts = zip(*self._pieces, strict=True)
        if self.pooling == "mean":
            return np.average(vectors, axis=0, weights=counts).astype(np.float32)
        found: NDArray[np.float32] = vectors[0 if self.pooling == "cls" else -1]
        return found

    def _vectors(self, texts: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        if self.pooling != "none":
            rows = (api.llama_get_embeddings_seq(self._handle, i) for i in range(len(texts)))
            return [floats_at(row, 1, self.size).copy() for row in rows]
        ends = np.cumsum([len(text) for text in texts])
        every = floats_at(api.llama_get_embeddings(self._handle), int(ends[-1]), self.size).copy()
        return np.split(every, ends[:-1])


def _has_head(path: Path) -> bool:
    """Whether the model has a classification head. Assumed for split files, whose head may be in a
    part that was not read.
    """
    header = GgufHeader(path)
    return "-of-" in path.name or any(
        header.shape(head) for head in ("cls.weight", "cls.output.weight")
    )


class EncoderEngine:
    """An engine without a cache that decodes nothing, for the scheduler of an embedding server."""

    padding_sequence: int | None = None
    adapters: Adapters | None = None
    is_asynchronous = lacks_cells = False
    attention_tile = 1
    cache_kind = CacheKind.CUT
    window = max_rollback = 0
    rows = Rows.TOGETHER
    can_shift = has_blocks = has_prompt_widths = has_reference = False
    max_outputs = 1

    def __init__(self, model: Model, max_tokens: int) -> None:
        """`max_tokens`: maximum length of an embedded text."""
        self.model = model
        self.vocab_size = model.vocab.size
        self.context_size = self.num_cells = self.max_batch_tokens = max_tokens

    @property
    def why_no_text(self) -> str:
        """Error for requests that need text generation."""
        return f"{self.model.facts.architecture} models compute embeddings and generate no text"

    def clear(self, seq_id: int) -> None:
        return

    def begin_filters(self, params: SamplingParams) -> None:
        return

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Refuse all other methods of `Engine`: they need requests for text."""
        if name.startswith("_"):
            raise AttributeError(name)

        def refuse(*given: Any, **more: Any) -> NoReturn:
            raise NotSupportedError(self.why_no_text)

        return refuse
