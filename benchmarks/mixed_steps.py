"""What prompt rows cost beside the rows of answers, and in a decode of their own.

    python -m benchmarks.mixed_steps models/1b-Q4_K_M.gguf
    python -m benchmarks.mixed_steps models/1b-Q4_K_M.gguf --answers 7 --contexts 60,128 --rows 64
    python -m benchmarks.mixed_steps models/1b-Q4_K_M.gguf --contexts 200 --idle 0,2000,6000

Some sequences have the same number of tokens each; the last one reads its prompt, all others get
one row each. In one decode they share so many rows, whole tiles of attention; apart, the prompt
alone has as many. Ways take turns; medians in milliseconds; the ratio is time a prompt row. See
`scheduler/turns.py`. "idle" are tokens of further sequences that no row belongs to; see
`PromptMemory.set_aside`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from benchmarks.lib.measure import Lab, Setting

from headstart.types import Batch, Engine
from headstart.types.errors import HeadstartError

IDLE_LENGTH = 500  # tokens of an idle sequence
CHUNK = 500

Decode = tuple[int, int]
"""Sequences with one row each, and rows of the last sequence."""


class Sequences:
    """Decodes behind a context that each decode leaves as it was."""

    def __init__(self, engine: Engine, num_answers: int, context: int, idle: int) -> None:
        """`idle`: tokens of sequences behind those."""
        self._engine, self._num_answers, self._context = engine, num_answers, context
        self._batch = Batch(engine.max_batch_tokens)
        self._random = np.random.default_rng(0)
        lengths = [*[IDLE_LENGTH] * (idle // IDLE_LENGTH), *[context] * (num_answers + 1)]
        self._num_sequences = len(lengths)
        for seq_id, length in enumerate(reversed(lengths)):
            engine.clear(seq_id)
            for start in range(0, length, CHUNK):
                self._batch.clear()
                self._batch.add(seq_id, start, self._tokens(min(CHUNK, length - start)), 1)
                engine.decode(self._batch)

    def decode(self, what: Decode) -> float:
        """Milliseconds."""
        num_answers, num_rows = what
        self._batch.clear()
        for seq_id in range(num_answers):
            self._batch.add(seq_id, self._context, self._tokens(1), 1)
        if num_rows:
            self._batch.add(self._num_answers, self._context, self._tokens(num_rows), 1)
        started = time.perf_counter()
        self._engine.decode(self._batch)
        milliseconds = 1000.0 * (time.perf_counter() - started)
        for seq_id in range(self._num_answers + 1):
            self._engine.truncate(seq_id, self._context)
        return milliseconds

    def clear(self) -> None:
        """Forget all sequences."""
        for seq_id in range(self._num_sequences):
            self._engine.clear(seq_id)

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = self._random.integers(self._engine.vocab_size, size=count).tolist()
        return tokens


def main() -> None:
    """Time the model that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--threads", type=int, help="default: physical cores")
    parser.add_argument("--answers", type=int, default=3, help="sequences that get one row each")
    parser.add_argument("--contexts", default="20,128,350,1000", help="tokens of each sequence")
    parser.add_argument("--rows", default="64,128,256", help="of a decode with a prompt")
    parser.add_argument("--idle", default="0", help=f"tokens, in multiples of {IDLE_LENGTH}")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    contexts = [int(text) for text in args.contexts.split(",")]
    totals = [int(text) for text in args.rows.split(",")]
    idles = [int(text) for text in args.idle.split(",")]
    try:
        lab = Lab(
            Setting(
                target=args.model,
                num_users=args.answers + 1 + max(idles) // IDLE_LENGTH,
                context=max(*contexts, IDLE_LENGTH) + max(totals),
                threads=args.threads,
            )
        )
    except HeadstartError as error:
        parser.error(str(error))
    print(f"{args.model.name}, {args.answers} answers, medians of {args.repeats}, milliseconds\n")
    print("| idle | context | rows | one decode | answers | prompt | apart / one |")
    print("|---|---|---|---|---|---|---|")
    for idle, context in itertools.product(idles, contexts):
        sequences = Sequences(lab.plain_engine, args.answers, context, idle)
        for total in totals:
            rows = total - args.answers
            ways: list[Decode] = [(args.answers, rows), (args.answers, 0), (0, total)]
            times: dict[Decode, list[float]] = {way: [] for way in ways}
            for _ in range(args.repeats):
                for way in ways:
                    times[way].append(sequences.decode(way))
            one, answers, prompt = (statistics.median(times[way]) for way in ways)
            ratio = (answers + prompt) / total / (one / rows)
            print(
                f"| {idle} | {context} | {total} | {one:.0f} | {answers:.1f} | {prompt:.0f} "
                f"| {ratio:.2f} |",
                flush=True,
            )
        sequences.clear()


if __name__ == "__main__":
    main()
