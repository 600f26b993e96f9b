"""libllama's samplers on sequences: a decode then returns the best logits of its rows, not all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.engine.context import LlamaEngine
from headstart.engine.library import api
from headstart.types import Batch

BEST = 40  # as many as the default top-k keeps
SEQUENCES = 8


class SamplingEngine(LlamaEngine):
    """Has a sampler that keeps the best logits on each of its sequences but the last few."""

    num_without = 0

    def _adjust(self, params: Any) -> None:
        num = params.n_seq_max - self.num_without
        self._configs = (api.llama_sampler_seq_config * num)()
        for seq_id, one in enumerate(self._configs):
            chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
            api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_k(BEST))
            one.seq_id, one.sampler = seq_id, chain
        params.samplers = self._configs
        params.n_samplers, params.n_outputs_max_per_seq = num, 9

    def best(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Ids and logits of an output row, where all rows are outputs; views, in no order."""
        count = api.llama_get_sampled_candidates_count_ith(self.handle, row)
        ids = api.llama_get_sampled_candidates_ith(self.handle, row)
        scores = api.llama_get_sampled_logits_ith(self.handle, row)
        return np.ctypeslib.as_array(ids, (count,)), np.ctypeslib.as_array(scores, (count,))


class MixedEngine(SamplingEngine):
    """One of the sequences has no sampler."""

    num_without = 2  # that, and the one for padding rows


def rows_of(shape: Sequence[int]) -> Batch:
    """A batch with so many rows of each sequence; all have logits."""
    batch = Batch(sum(shape))
    for seq_id, num in enumerate(shape):
        batch.add(seq_id, 0, [(7919 * i + seq_id) % 250 for i in range(num)], num)
    return batch


def check_best(plain: LlamaEngine, sampling: SamplingEngine, shape: Sequence[int]) -> None:
    """The best logits are those of the whole row, bit for bit."""
    batch = rows_of(shape)
    whole = plain.decode(batch)
    sampling.decode(batch)
    for index, row in enumerate(whole):
        ids, scores = sampling.best(index)
        np.testing.assert_array_equal(scores, row[ids])
        np.testing.assert_array_equal(np.sort(scores), np.sort(row)[-BEST:])
    clear(plain, sampling)


def graphs_reused(engine: LlamaEngine) -> int:
    """Of 20 steps with 16 rows, of which the sequences have other shares in each."""
    shares, before = [1, 1, 1, 1, 3, 3, 3, 3], 0
    for step in range(21):
        engine.decode(rows_of(np.random.default_rng(step).permutation(shares).tolist()))
        clear(engine)
        if not step:
            before = api.llama_perf_context(engine.handle).n_reused
    return int(api.llama_perf_context(engine.handle).n_reused - before)


def clear(*engines: LlamaEngine) -> None:
    """Forget all sequences."""
    for engine in engines:
        for seq_id in range(SEQUENCES):
            engine.clear(seq_id)
