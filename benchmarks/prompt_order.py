"""What reading several prompts costs, by how they take turns.

    python -m benchmarks.prompt_order models/1b-Q4_K_M.gguf
    python -m benchmarks.prompt_order models/1b-Q4_K_M.gguf --prompts 3 --tokens 1000 --answers 5

The prompts are read in decodes of so many rows, beside the cells of some answers: one prompt after
the other; in turns of 128 or 256 rows; or sharing every decode. Tokens that are read one after the
other get neighbouring cells, and attention skips only whole tiles of cells of which a row sees
none, so turns that are too short make each prompt look at the others' cells. Ways take turns;
median milliseconds a prompt row. See `scheduler/prompt_order.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from benchmarks.lib.measure import Lab, Setting

from headstart.types import Batch, Engine
from headstart.types.errors import HeadstartError

CHUNK = 128  # rows of a decode

Plan = list[list[tuple[int, int]]]
"""Decodes, each with its prompts and their rows."""


def in_turns(prompts: int, tokens: int, piece: int) -> Plan:
    """Pieces of so many rows, in decodes of CHUNK rows."""
    plan: Plan = []
    for start in range(0, tokens, piece):
        for prompt in range(prompts):
            end = min(start + piece, tokens)
            plan += [[(prompt, min(CHUNK, end - at))] for at in range(start, end, CHUNK)]
    return plan


def shared(prompts: int, tokens: int) -> Plan:
    """Each decode has rows of all prompts."""
    rows = CHUNK // prompts
    return [
        [(prompt, min(rows, tokens - start)) for prompt in range(prompts)]
        for start in range(0, tokens, rows)
    ]


class Reader:
    """Reads prompts beside answers, whose cells stay."""

    def __init__(self, engine: Engine, prompts: int, answers: int, context: int) -> None:
        self._engine, self._prompts = engine, prompts
        self._batch = Batch(engine.max_batch_tokens)
        self._random = np.random.default_rng(0)
        for seq_id in range(prompts, prompts + answers):
            self._decode([(seq_id, context)], [0] * (seq_id + 1))

    def read(self, plan: Plan) -> float:
        """Milliseconds a row."""
        positions = [0] * self._prompts
        started = time.perf_counter()
        for rows in plan:
            self._decode(rows, positions)
        seconds = time.perf_counter() - started
        for seq_id in range(self._prompts):
            self._engine.clear(seq_id)
        return 1000.0 * seconds / sum(positions)

    def _decode(self, rows: list[tuple[int, int]], positions: list[int]) -> None:
        self._batch.clear()
        for seq_id, count in rows:
            tokens = self._random.integers(self._engine.vocab_size, size=count).tolist()
            self._batch.add(seq_id, positions[seq_id], tokens, 1)
            positions[seq_id] += count
        self._engine.decode(self._batch)


def main() -> None:
    """Time the model that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--threads", type=int, help="default: physical cores")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=1000, help="of each prompt")
    parser.add_argument("--answers", type=int, default=5, help="further sequences")
    parser.add_argument("--context", type=int, default=250, help="tokens of each answer")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    try:
        lab = Lab(
            Setting(
                target=args.model,
                num_users=args.prompts + args.answers,
                context=max(args.tokens, args.context),
                threads=args.threads,
            )
        )
    except HeadstartError as error:
        parser.error(str(error))
    ways = {
        "one after the other": in_turns(args.prompts, args.tokens, args.tokens),
        "turns of 512 rows": in_turns(args.prompts, args.tokens, 512),
        "turns of 256 rows": in_turns(args.prompts, args.tokens, 256),
        "turns of 128 rows": in_turns(args.prompts, args.tokens, 128),
        "together": shared(args.prompts, args.tokens),
    }
    reader = Reader(lab.plain_engine, args.prompts, args.answers, args.context)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.repeats):
        for name, plan in ways.items():
            times[name].append(reader.read(plan))
    print(f"{args.model.name}, {args.prompts} prompts of {args.tokens} tokens beside")
    print(f"{args.answers} answers of {args.context}, medians of {args.repeats}\n")
    print("| prompts are read | ms a row |")
    print("|---|---|")
    for name, values in times.items():
        print(f"| {name} | {statistics.median(values):.2f} |")


if __name__ == "__main__":
    main()
