"""`DraftContext` over a llama_context: multi-token heads, EAGLE-3, DFlash and Gemma's assistants.

All read hidden states of a target, which their batches carry besides the tokens. Whatever this
libllama aborts on is impossible by construction, or was refused by `drafters` before.

Source: llama.cpp, common/speculative.cpp
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config import EngineConfig
from headstart.engine.c_batch import c_batch, floats_at
from headstart.engine.context import LlamaEngine
from headstart.engine.drafters import ASSISTANT, DFLASH
from headstart.engine.gguf_header import GgufHeader
from headstart.engine.library import api, libllama_error
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.types import Batch, CacheKind
from headstart.types.constraint import NO_LIMIT
from headstart.types.engine import Blocks
from headstart.types.errors import EngineError


class LlamaDraftContext(LlamaEngine):
    """A drafting model beside the target's context, which must outlive it."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        limits: Limits,
        target: LlamaEngine,
    ) -> None:
        """Create the context.

        Args:
            model: the draft model, or the target's with its heads.
            config: its settings; drafts need not be exact.
            limits: with `is_heads` it runs the multi-token heads of the model.

        Raises:
            ModelError: libllama cannot create it, or lacks a symbol.
        """
        architecture = model.facts.architecture
        self._target, self._is_heads = target, limits.is_heads or architecture == ASSISTANT
        self._head = self._num_rows = self.feature_width = 0
        self.shares_target = architecture == ASSISTANT
        config = replace(config, exact=False, swa_full=True, ctx_checkpoints=0)
        super().__init__(model, config, limits)
        self.reader = None
        if self.shares_target:
            target.reader = None
        handle, target_handle = model.handle, target.model.handle
        self.num_heads = int(api.llama_model_n_layer_nextn(handle)) if limits.is_heads else 1
        self.state_width = int(api.llama_model_n_embd_out(handle))
        if not self._is_heads:
            num_layers = int(api.llama_model_target_layer_ids_n(handle))
            self.feature_width = num_layers * int(api.llama_model_n_embd(target_handle))
            self._encoding = Batch(self.max_batch_tokens, self.feature_width, has_tokens=False)
        self.blocks = _blocks(model) if architecture == DFLASH else None
        if self.blocks:
            is_causal = model.metadata().get("dflash.attention.causal") == "true"
            api.llama_set_causal_attn(self.handle, is_causal)
        api.llama_set_embeddings_nextn(self.handle, True, True)  # of output rows only

    def _adjust(self, params: Any) -> None:
        params.ctx_other = self._target.handle
        params.ctx_type = int(self._is_heads)  # libllama's kind for multi-token heads is 1
        params.n_rs_seq = 0
        # a block is decoded in one micro-batch: its rows attend to each other
        params.n_ubatch = params.n_batch
        if self.shares_target:  # the same cells, found in the same way
            for name in ("n_ctx", "n_seq_max", "kv_unified", "swa_full", "flash_attn_type"):
                setattr(params, name, getattr(self._target.params, name))
        params.n_outputs_max = max(params.n_outputs_max, params.n_seq_max)

    def _find_kind(self) -> None:
        """Heads of hybrid models have attention only; windows are kept whole."""
        self.cache_kind, self.max_padding, self.window = CacheKind.CUT, NO_LIMIT, 0

    def launch(self, batch: Batch) -> None:
        if batch.head != self._head:
            api.llama_set_nextn_layer_offset(self.handle, batch.head)
            self._head = batch.head
        self._num_rows = batch.num_outputs
        super().launch(batch)

    def outputs(self) -> NDArray[np.float32]:
        if not self._num_rows:
            return np.empty((0, self.state_width), np.float32)
        return floats_at(
            api.llama_get_embeddings_nextn(self.handle), self._num_rows, self.state_width
        )

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        batch, found = self._encoding, list[NDArray[np.float32]]()
        for start in range(0, len(features), batch.capacity):
            part = features[start : start + batch.capacity]
            # positions are checked although the encoder ignores them
            position = int(api.llama_memory_seq_pos_max(self._memory, 0)) + 1
            batch.clear()
            batch.add_rows(0, position, [0] * len(part), part)
            batch.want_all()
            if status := api.llama_encode(self.handle, c_batch(batch)):
                words = f"llama_encode returned {status} for {len(part)} rows"
                raise libllama_error(EngineError, words)
            address = api.llama_get_embeddings_nextn(self.handle)
            found.append(floats_at(address, len(part), self.state_width).copy())
        return np.concatenate(found)


def _blocks(model: Model) -> Blocks:
    """The block settings of a DFlash or DSpark file."""
    header = GgufHeader(model.path)
    is_dspark = bool(header.shape("markov_w1.weight"))
    return Blocks(
        size=header.number("dflash.block_size", 16),
        mask_id=int(api.llama_vocab_mask(model.vocab.handle)),
        has_anchor=is_dspark and bool(header.number("dflash.sample_from_anchor", 1)),
        has_confidence=is_dspark and bool(header.shape("conf_proj.weight")),
    )
