"""What libllama's top-k gives where it computes, next to reading whole rows: times, and limits.

libllama can attach a sampler to a sequence and then returns the best logits of its rows instead of
all. What is printed about it says why the server does not use it; see docs/architecture.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.app.assemble import find_models
from headstart.config import Config, EngineConfig, ModelConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.library import api
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.extras.bench.report import table_head, table_row
from headstart.structures.topk import top_k
from headstart.types import Batch

BEST = 40  # as many as the default top-k keeps
SEQUENCES, ROWS = 8, 9
SHAPES = ((1, 1), (1, 4), (1, 9), (8, 1), (8, 4), (8, 9))  # sequences, and rows of each
REPEATS = 7
Best = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Ids and logits, in no order; views into libllama's memory."""


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
        params.n_samplers, params.n_outputs_max_per_seq = num, ROWS

    def best(self, row: int) -> Best:
        """Of an output row of a batch in which all rows are outputs."""
        count = api.llama_get_sampled_candidates_count_ith(self.handle, row)
        ids = api.llama_get_sampled_candidates_ith(self.handle, row)
        scores = api.llama_get_sampled_logits_ith(self.handle, row)
        return np.ctypeslib.as_array(ids, (count,)), np.ctypeslib.as_array(scores, (count,))


class MixedEngine(SamplingEngine):
    """One of the sequences has no sampler."""

    num_without = 2  # that, and the one for padding rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, time and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", "-m", help="GGUF; without one the embedded model")
    parser.add_argument("--gpu-layers", "-ngl", type=int, default=99)
    parser.add_argument("--flash-attn", "-fa", default="auto")
    options, _ = parser.parse_known_args(arguments)  # takes other flags of headstart too
    path = find_models(Config(model=ModelConfig(model=options.model))).target
    settings = EngineConfig(
        context=2048, gpu_layers=options.gpu_layers, flash_attn=options.flash_attn
    )
    model = Model(path, settings)
    limits = Limits(SEQUENCES, SEQUENCES * ROWS, 0)
    plain, sampling = LlamaEngine(model, settings, limits), SamplingEngine(model, settings, limits)
    print(f"{path.name}, {model.vocab.size} tokens, the best {BEST}\n")
    for line in compare(plain, sampling):
        print(line, flush=True)
    mixed = MixedEngine(model, settings, limits)
    print(f"\n{facts(plain, sampling, mixed)}")
    return 0


def rows_of(shape: Sequence[int], position: int = 0) -> Batch:
    """A batch with so many rows of each sequence, from a position on; all have logits."""
    batch = Batch(sum(shape))
    for seq_id, num in enumerate(shape):
        tokens = [(7919 * (position + i) + seq_id) % 250 for i in range(num)]
        batch.add(seq_id, position, tokens, num)
    return batch


def compare(plain: LlamaEngine, sampling: SamplingEngine) -> Iterator[str]:
    """Times of both, in turn, and whether they give the same."""
    yield table_head(
        "sequences x rows", "whole rows, ms", "finding the best, ms", "with samplers, ms", "ms more"
    )
    num_rows, num_same, num_ties, num_same_ties = 0, 0, 0, 0
    for num_sequences, num in SHAPES:
        times: list[tuple[float, ...]] = []
        for position in range(0, REPEATS * num, num):
            batch = rows_of([num] * num_sequences, position)
            marks = [perf_counter()]
            logits = plain.decode(batch)
            marks.append(perf_counter())
            own = [top_k(row, BEST + 1) for row in logits]
            marks.append(perf_counter())
            sampling.launch(batch)
            api.llama_synchronize(sampling.handle)
            found = [sampling.best(row) for row in range(len(logits))]
            marks.append(perf_counter())
            times.append(tuple(1e3 * (end - start) for start, end in pairwise(marks)))
            for (ids, scores), (theirs, values), row in zip(own, found, logits, strict=True):
                num_rows += 1
                is_tie = bool(scores[BEST] == scores[BEST - 1])
                is_same = bool((np.sort(-values) == -scores[:BEST]).all())
                is_same &= bool((row[theirs] == values).all())
                is_alike = set(theirs.tolist()) == set(ids[:BEST].tolist())
                num_same += is_same and (is_tie or is_alike)
                num_ties, num_same_ties = num_ties + is_tie, num_same_ties + (is_tie and is_alike)
        decode, best, other = (statistics.median(part) for part in zip(*times, strict=True))
        yield table_row(f"{num_sequences} x {num}", decode, best, other, other - decode - best)
        clear(plain, sampling)
    yield (
        f"\nThe same logits bit for bit in {num_same} of {num_rows} rows. {num_ties} have a tie at "
        f"the edge of the best {BEST}; of those {num_same_ties} keep the lower ids."
    )


def facts(plain: LlamaEngine, sampling: SamplingEngine, mixed: MixedEngine) -> str:
    """What cannot be had with samplers."""
    batch = rows_of([2] * SEQUENCES)
    expected = plain.decode(batch)
    whole = [(engine.decode(batch) == expected).all(axis=1).sum() for engine in (sampling, mixed)]
    clear(plain, sampling, mixed)
    reused = [graphs_reused(engine) for engine in (plain, sampling)]
    return "\n".join(
        (
            f"- Whole rows that can be read where all sequences have a sampler: {whole[0]} of "
            f"{len(expected)}; where one has none: {whole[1]}, so all of them are copied.",
            f"- Steps whose graph is reused, of 20 that divide 16 rows otherwise each time: "
            f"{reused[0]} without samplers, {reused[1]} with them.",
        )
    )


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


if __name__ == "__main__":
    raise SystemExit(main())
