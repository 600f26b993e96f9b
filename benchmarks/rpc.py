"""One model over two machines: what drafts earn by the round trip, the width and the output layer.

    python -m benchmarks.rpc
        the demo model, whose steps take hardly more than the network
    python -m benchmarks.rpc --model models/1b-Q4_0.gguf --delays 5
        a model whose layers take their time

A worker on loopback behind a line with a delay and a rate (lib/delayed_link.py). Arms: off; auto
with widths as they come (free), held for ever (constant), and held as long as it is expected to
pay (learned), which is what a server does. Needs the RPC backend (docs/rpc.md).
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would fight with libllama's

from benchmarks.lib.arms import OFF, Arm
from benchmarks.lib.measure import Lab, Sampling, Setting, compare
from benchmarks.lib.workloads import make_prompts

from headstart.app import demo
from headstart.app.speculation import AUTO_TYPES
from headstart.types.errors import HeadstartError

START_SECONDS = 60.0
REMOTE_OUTPUT = r"^(output|token_embd)\.weight$=RPC0[{endpoint}]"
ARMS = ("free", "constant", "learned")


@dataclass(frozen=True, slots=True)
class Cell:
    """One line, and where the output layer is."""

    model: Path
    endpoint: str
    is_output_local: bool
    workload: str
    num_prompts: int
    max_tokens: int
    threads: int


@dataclass(frozen=True, slots=True)
class Result:
    """Tokens per second by arm; what a changed graph was measured to cost; steps by rows."""

    rates: dict[str, float]
    change_ms: float
    step_ms: dict[str, float]
    padding: float  # rows a step, of the arm `learned`


def measure(cell: Cell) -> Result:
    """All arms of one cell; in a process of its own, which the worker's end may end too."""
    override = None if cell.is_output_local else REMOTE_OUTPUT.format(endpoint=cell.endpoint)
    setting = Setting(
        target=cell.model, threads=cell.threads, rpc=cell.endpoint, override_tensor=override
    )
    lab = Lab(setting)
    schedulers = {"off": lab.arm(OFF)}
    for name in ARMS:
        schedulers[name] = lab.arm(Arm(name, AUTO_TYPES, "auto"))
    learned = schedulers["learned"].drafting.controller
    schedulers["free"].drafting.controller.set_change_ms(0.0)
    schedulers["constant"].drafting.controller.set_change_ms(math.inf)
    prompts = make_prompts(cell.workload, cell.num_prompts, 7)
    sampling = Sampling(0.0, max_tokens=cell.max_tokens)
    totals = compare(lab, schedulers, [[prompt] for prompt in prompts], sampling)
    steps = [step for run in totals["learned"].runs for step in run.steps]
    costs = learned.describe()
    return Result(
        {name: one.rate for name, one in totals.items()},
        costs["change_ms"],
        {rows: ms for rows, ms in costs["cost_ms"]["rows"].items() if rows in ("1", "8", "16")},
        sum(step.num_padding_rows for step in steps) / len(steps),
    )


@contextmanager
def line(round_trip_ms: float, gbit: float, threads: int) -> Iterator[str]:
    """A worker behind a line; yields the address to connect to."""
    near, far = _free_port(), _free_port()
    commands = (
        ["-m", "headstart", "rpc-worker", "--port", str(far), "--threads", str(threads)],
        ["-m", "benchmarks.lib.delayed_link", *map(str, (near, far, round_trip_ms, gbit))],
    )
    processes = []
    try:
        for command, port in zip(commands, (far, near), strict=True):
            processes.append(
                subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
            )
            _wait(processes[-1], port)
        yield f"127.0.0.1:{near}"
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise HeadstartError(f"nothing listens on port {port}; see above")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all cells, a line of the table each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=demo.path(demo.TARGET))
    parser.add_argument("--delays", default="0.2,1,5", help="round trips in ms")
    parser.add_argument("--gbit", type=float, default=1.0, help="of the line, per second")
    parser.add_argument("--outputs", default="local,remote")
    parser.add_argument("--workload", default="edit")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    print(f"{options.model.name}, {options.workload}, {options.gbit:g} Gbit/s, tokens/s\n")
    heads = ["round trip", "output", "off", *ARMS, "learned / off", "free / off"]
    heads += ["change ms", "ms by rows", "padding"]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads), flush=True)
    context = multiprocessing.get_context("spawn")
    for delay in map(float, options.delays.split(",")):
        for output in options.outputs.split(","):
            with line(delay, options.gbit, options.threads) as endpoint:
                cell = Cell(
                    options.model,
                    endpoint,
                    output == "local",
                    options.workload,
                    options.prompts,
                    options.tokens,
                    options.threads,
                )
                with ProcessPoolExecutor(1, mp_context=context) as pool:
                    print(_row(delay, output, pool.submit(measure, cell).result()), flush=True)
    return 0


def _row(delay: float, output: str, result: Result) -> str:
    rates = result.rates
    widths = ", ".join(f"{rows}: {ms:.1f}" for rows, ms in result.step_ms.items())
    cells = [f"{delay:g} ms", output, *(f"{rates[name]:.1f}" for name in ("off", *ARMS))]
    cells += [f"**{rates['learned'] / rates['off']:.2f}**", f"{rates['free'] / rates['off']:.2f}"]
    cells += [f"{result.change_ms:.2f}", widths, f"{result.padding:.2f}"]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    raise SystemExit(main())
