"""What a step of a model costs on this machine, by rows: milliseconds, and the curve that
`replay.py --curve` takes.

    python -m benchmarks.step_costs models/1b-q8.gguf
    python -m benchmarks.step_costs models/1b-q8.gguf --threads 4 --context 4096 --rows 1,2,4,8

The numbers of rows take turns, so that what slows the machine down slows all alike. The least of
the repetitions is the quiet machine; a median far above it says that something else was running.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would fight with libllama's

from benchmarks.lib.arms import LONGEST_DRAFT
from benchmarks.lib.curves import CostCurve, time_steps
from benchmarks.lib.measure import Lab, Setting
from benchmarks.lib.report import table_head, table_row

from headstart.types.errors import HeadstartError

ROWS = "1,2,3,4,5,6,8,12,16,24,32"


def table(times: Mapping[int, Sequence[float]]) -> str:
    """A line per number of rows, then the curves."""
    least = {rows: min(values) for rows, values in times.items()}
    median = {rows: statistics.median(values) for rows, values in times.items()}
    first = min(times)
    lines = [
        table_head("rows", "ms, least", "ms, median", "median, x first", "rows/s"),
        *(
            table_row(
                rows,
                least[rows],
                median[rows],
                median[rows] / median[first],
                f"{1000.0 * rows / median[rows]:.1f}",
            )
            for rows in sorted(times)
        ),
    ]
    if len(times) > 1:
        lines += ["", f"least:  --curve {CostCurve(least)}", f"median: --curve {CostCurve(median)}"]
    return "\n".join(lines)


def main() -> None:
    """Time the model that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--threads", type=int, help="default: physical cores")
    parser.add_argument(
        "--context", type=int, default=256, help="tokens in the cache while steps are timed"
    )
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error(f"--repeats is {args.repeats} but must be at least 1")
    try:
        lab = Lab(
            Setting(
                target=args.model, context=args.context + 2 * LONGEST_DRAFT, threads=args.threads
            )
        )
        rows = [int(text) for text in args.rows.split(",")]
        times = time_steps(lab.plain_engine, rows, context=args.context, num_repeats=args.repeats)
    except (HeadstartError, ValueError) as error:
        parser.error(str(error))
    print(
        f"{args.model.name}, {args.context} tokens of context, {args.repeats} "
        f"repetitions\n\n{table(times)}"
    )


if __name__ == "__main__":
    main()
