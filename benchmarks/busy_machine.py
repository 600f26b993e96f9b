"""How long idle threads should spin before they sleep, alone and beside other programs.

    python -m benchmarks.busy_machine MODEL.gguf [--llama-server BINARY] [--spins 3000,300000]

One server per number of spins (GOMP_SPINCOUNT), without speculation, and llama-server with
libgomp's own choice. They take turns, each round another first: a new prompt of 192 random tokens
with an answer of one token, then an answer of 16 tokens to a short one. First without neighbours,
then beside one program that never sleeps, beside one per core, and beside another server that
answers without end. Prints milliseconds a prompt token and an answer token (medians), and what
they are relative to the first server of the same round (mean and standard error).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.lib.serving import running

BUSY = [sys.executable, "-c", "while True: pass"]
PROMPT, ANSWER = 128, 32  # tokens
Times = tuple[float, float]  # milliseconds a prompt token, an answer token


def ask(port: int, prompt: Sequence[int], num_tokens: int) -> float:
    """Seconds of a request."""
    body = {
        "prompt": list(prompt), "n_predict": num_tokens, "ignore_eos": True,
        "cache_prompt": False, "temperature": 0,
    }  # fmt: skip
    started = time.monotonic()
    url = f"http://127.0.0.1:{port}/completion"
    urllib.request.urlopen(url, json.dumps(body).encode(), timeout=600).read()
    return time.monotonic() - started


def ask_both(port: int, prompt: Sequence[int]) -> Times:
    """Times of a prompt and of an answer."""
    return 1000 * ask(port, prompt, 1) / PROMPT, 1000 * ask(port, prompt[:8], ANSWER) / ANSWER


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Programs that never sleep."""
    programs = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@contextmanager
def asked_without_end(port: int) -> Iterator[None]:
    """A server that always answers."""
    end = threading.Event()

    def run() -> None:
        while not end.is_set():
            ask(port, range(10, 30), 16)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def measure(ports: dict[str, int], rounds: int, random: Random) -> dict[str, list[Times]]:
    """Times by server, one a round."""
    names = list(ports)
    times: dict[str, list[Times]] = {name: [] for name in names}
    for turn in range(rounds):
        prompt = [random.randrange(10, 2000) for _ in range(PROMPT)]
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(ask_both(ports[name], prompt))
    return times


def print_times(neighbours: str, times: dict[str, list[Times]]) -> None:
    """A line per server."""
    first = next(iter(times.values()))
    for name, rows in times.items():
        cells = []
        for mine, base in zip(zip(*rows, strict=True), zip(*first, strict=True), strict=True):
            ratios = [one / other for one, other in zip(mine, base, strict=True)]
            error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
            cells.append(
                f"{statistics.median(mine):.2f} | {statistics.fmean(ratios):.3f} +- {error:.3f}"
            )
        print(f"| {neighbours} | {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--spins", default="300,3000,30000,300000")
    parser.add_argument("--neighbours", default="none,program,programs,server")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    common = ["-m", str(options.model), "-c", "1024", "-np", "1", "-t", str(options.threads)]
    ours = [sys.executable, "-m", "headstart", "serve", *common, "--spec", "off"]
    commands = {}
    if options.llama_server:
        commands["llama-server"] = [str(options.llama_server), *common, "--no-webui"]
    for spins in options.spins.split(","):
        commands[f"Headstart, {spins} spins"] = ["env", f"GOMP_SPINCOUNT={spins}", *ours]
    print("| beside | server | prompt, ms a token | relative | answer, ms a token | relative |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ports = {
            name: stack.enter_context(running(command, Path(folder) / "log"))
            for name, command in commands.items()
        }
        other = stack.enter_context(running(next(iter(commands.values())), Path(folder) / "other"))
        random = Random(0)
        measure(ports, 1, random)  # warm
        for neighbours in options.neighbours.split(","):
            with ExitStack() as beside:
                if neighbours == "program":
                    beside.enter_context(busy_programs(1))
                elif neighbours == "programs":
                    beside.enter_context(busy_programs(os.cpu_count() or 1))
                elif neighbours == "server":
                    beside.enter_context(asked_without_end(other))
                print_times(neighbours, measure(ports, options.rounds, random))


if __name__ == "__main__":
    main()
