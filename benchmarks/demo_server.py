"""The demo server as `make serve` starts it: speculation by itself against speculation off.

    python -m benchmarks.demo_server [--rounds 5]

Each round starts two servers that know nothing, one with `--spec off`, and sends both the same
prompts in turn, each time the other one first. A request counts from the moment it is sent until
its last token, so the first text of a kind counts with what it costs to learn. Prints, for each
workload and temperature, tokens/s with speculation off and the ratio of auto to it, with the
standard error over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from benchmarks.lib.serving import HEADSTART, complete, running
from benchmarks.lib.workloads import make_prompts, parse_cells

from headstart.extras.bench.report import MeanRatio, table_head, table_row

COMMAND = [*HEADSTART, "serve", "--log-level", "warning"]
SERVERS = {"off": ["--spec", "off"], "auto": ["--spec-state", "none"]}

Cell = tuple[str, float]  # workload, temperature


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="edit,continue,json,chat")
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=4, help="of each cell in a round")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer")
    options = parser.parse_args()
    cells = parse_cells(options.workloads, options.temperatures)
    seconds: dict[tuple[str, Cell], list[float]] = defaultdict(list)  # per token, by round
    for number in range(options.rounds):
        taken = run_round(cells, number, options.texts, options.tokens)
        for key, value in taken.items():
            seconds[key].append(value)
        print(f"round {number + 1} of {options.rounds}: done", file=sys.stderr, flush=True)
    print_table(cells, seconds)


def run_round(
    cells: list[Cell], number: int, num_texts: int, num_tokens: int
) -> dict[tuple[str, Cell], float]:
    """Seconds per token by server and cell, of two servers that have just been started."""
    taken: dict[tuple[str, Cell], float] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ports = {
            name: stack.enter_context(running([*COMMAND, *flags], Path(folder) / name))
            for name, flags in SERVERS.items()
        }
        for cell in cells:
            workload, temperature = cell
            spent, tokens = dict.fromkeys(ports, 0.0), dict.fromkeys(ports, 0)
            for turn, prompt in enumerate(make_prompts(workload, num_texts, 1000 + number)):
                names = list(ports) if turn % 2 else list(reversed(ports))
                for name in names:
                    body = {
                        "prompt": prompt.text,
                        "n_predict": min(num_tokens, prompt.max_tokens),
                        "temperature": temperature,
                        "seed": turn,
                    }
                    answer = complete(ports[name], body)
                    spent[name] += answer.last - answer.sent
                    tokens[name] += len(answer.tokens)
            for name in ports:
                taken[name, cell] = spent[name] / max(1, tokens[name])
    return taken


def print_table(cells: list[Cell], seconds: dict[tuple[str, Cell], list[float]]) -> None:
    """A line per cell, and the mean of all."""
    print(
        table_head("workload", "temperature", "off, tokens/s", "auto / off", "least of the rounds")
    )
    means = []
    for cell in cells:
        off, auto = seconds["off", cell], seconds["auto", cell]
        ratios = [a / b for a, b in zip(off, auto, strict=True)]
        ratio = MeanRatio.of_ratios(ratios)
        means.append(ratio.mean)
        print(
            table_row(
                cell[0], f"{cell[1]:g}", f"{1 / statistics.fmean(off):.0f}", ratio, min(ratios)
            )
        )
    print(f"\ngeometric mean: {statistics.geometric_mean(means):.2f}")


if __name__ == "__main__":
    main()
