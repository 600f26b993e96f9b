"""What requests notice of a router and of each other.

    python -m benchmarks.traffic latency [--streams 1,8,32]
    python -m benchmarks.traffic pause --model models/0.2b-Q4_K_M.gguf [--tokens 4000]
    python -m benchmarks.traffic flood --model models/0.2b-Q4_K_M.gguf [--flood 40]

latency   the same server asked directly and through the router, in turn: milliseconds to the first
          token and between tokens, median and 99th percentile. The server answers at a fixed pace,
          so what is more than in the first row is the router's.
pause     the time between two tokens of a stream while another tenant's long prompt is read
flood     the median time to the first token of a tenant that asks now and then, alone and while
          another one always has many requests
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import numpy as np

from headstart.extras.bench.client import HEADSTART, Answer, Client, running
from headstart.extras.bench.library import Question
from headstart.extras.bench.report import table_head, table_row

TOKENS = 25  # of an answer, for latency
ROUNDS = 6  # how often each way is asked, in turn


def latency(streams: Sequence[int]) -> None:
    """Print a table, a row per way and number of streams."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        log = Path(folder)
        scripted = (sys.executable, "-m", "benchmarks.lib.scripted_server")
        direct = stack.enter_context(running(scripted, log / "server"))
        backend = ("--backend", direct.url)
        ways = {"direct": direct}
        ways["router"] = stack.enter_context(running((*HEADSTART, "router", *backend), log / "r"))
        time.sleep(2)  # everybody knows everybody
        print(
            table_head(
                "streams", "way", "first token p50, p99 (ms)", "between tokens p50, p99 (ms)"
            )
        )
        for number in streams:
            answers = {name: list[Answer]() for name in ways}
            for turn, (name, way) in itertools.product(range(ROUNDS), ways.items()):
                prompts = [f"{turn} {i} " * 50 for i in range(number)]
                asked = [Question((prompt,), TOKENS, is_raw=True) for prompt in prompts]
                found = way.ask_all(asked, max_tokens=TOKENS)
                if turn:  # the first makes connections
                    answers[name] += found
            for name, all_found in answers.items():
                first = [1000 * one.first_seconds for one in all_found]
                between = [
                    1000 * (b - a) for one in all_found for a, b in itertools.pairwise(one.arrivals)
                ]
                print(table_row(number, name, _quantiles(first), _quantiles(between)))


def _quantiles(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in np.quantile(values, (0.5, 0.99)))


def pause(options: argparse.Namespace, flags: Sequence[str]) -> None:
    """Milliseconds between the tokens of a stream, by the quarter of the prompt that is read."""
    num_tokens = options.tokens
    flags = ["--context", str(num_tokens + 4096), "--parallel", "2", *flags]
    with serving(options.model, flags) as tenants, ThreadPoolExecutor() as pool:
        over, arrivals = Event(), list[float]()
        stream = pool.submit(read, tenants[0], text(1, 64), 2048, over, arrivals)
        while len(arrivals) < 20:
            time.sleep(0.05)
        sent = time.monotonic()
        try:
            read(tenants[1], text(2, num_tokens), 1, Event(), [])
            done = time.monotonic()
        finally:
            over.set()
        stream.result()
    print(
        f"pause: {options.model.stem}, {num_tokens} tokens in {done - sent:.0f} s; ms between two "
        "tokens"
    )
    pairs = list(itertools.pairwise(arrivals))
    before = [after - first for first, after in pairs if after < sent]
    print(f"  before: median {1e3 * statistics.median(before):.0f}")
    for number in range(4):
        start, end = (sent + (number + i) * (done - sent) / 4 for i in (0, 1))
        waits = [after - first for first, after in pairs if start <= after < end] or [0.0]
        print(
            f"  quarter {number + 1}: median {1e3 * statistics.median(waits):.0f}, longest "
            f"{1e3 * max(waits):.0f}, {len(waits)} tokens"
        )


def flood(options: argparse.Namespace, flags: Sequence[str]) -> None:
    """The median time to the first token, alone and beside the flood."""
    flags = ["--max-queue", "1000", *flags]
    with serving(options.model, flags) as tenants, ThreadPoolExecutor(options.flood) as pool:
        alone = list(visits(tenants[0], options.requests, 1000))
        over = Event()
        for number in range(options.flood):
            pool.submit(ask_until, tenants[1], number, over)
        time.sleep(10.0)
        try:
            beside = list(visits(tenants[0], options.requests, 2000))
        finally:
            over.set()
    first, second = statistics.median(alone), statistics.median(beside)
    print(
        f"flood: {options.model.stem}: the first token after {1e3 * first:.0f} ms alone (median "
        f"of {len(alone)}), {1e3 * second:.0f} ms beside {options.flood} requests of another: "
        f"{second / first:.2f} times as long; at most {1e3 * max(alone):.0f} and "
        f"{1e3 * max(beside):.0f} ms"
    )


def visits(client: Client, count: int, seed: int) -> Iterator[float]:
    """Seconds to the first token of requests with a pause between them."""
    random = Random(seed)
    for number in range(count):
        arrivals = list[float]()
        sent = time.monotonic()
        read(client, text(seed + number, 400), 16, Event(), arrivals)
        yield arrivals[0] - sent
        time.sleep(random.uniform(0.2, 1.0))


def ask_until(client: Client, number: int, over: Event) -> None:
    """One client of the flood, which asks again and again."""
    random = Random(number)
    while not over.is_set():
        read(client, text(number, random.randint(100, 800)), random.randint(20, 200), over, [])
        number += 100_000


def text(seed: int, num_tokens: int) -> list[int]:
    """A prompt like no other."""
    random = Random(seed)
    return [100 + random.randrange(800) for _ in range(num_tokens)]


def read(
    client: Client, prompt: list[int], max_tokens: int, over: Event, arrivals: list[float]
) -> None:
    """Read an answer until it ends or is not wanted any more; when its tokens came."""
    body: dict[str, Any] = {"prompt": prompt, "n_predict": max_tokens, "stream": True}
    for line in client.lines("/completion", body | {"temperature": 0, "ignore_eos": True}):
        if line.startswith(b"data: {"):
            arrivals.append(time.monotonic())
        if over.is_set():
            break


@contextmanager
def serving(model: Path, flags: Sequence[str]) -> Iterator[tuple[Client, Client]]:
    """Two tenants of a server that is warm."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*HEADSTART, "serve", "-m", str(model), "--spec", "off", *flags]
        command += ["--spec-state", "none", "--api-key", "one,other"]
        with running(command, Path(folder) / "log", "one") as client:
            yield client, replace(client, key="other")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("latency", "pause", "flood"))
    parser.add_argument("--streams", default="1,8,32", help="streams at the same time")
    parser.add_argument("--model", type=Path, help="of all but latency")
    parser.add_argument("--tokens", type=int, default=32_000, help="of the long prompt")
    parser.add_argument(
        "--requests", type=int, default=20, help="of the tenant that asks now and then"
    )
    parser.add_argument("--flood", type=int, default=100, help="requests that the other always has")
    parser.add_argument("--flags", default="", help="further flags of the server")
    options = parser.parse_args()
    if options.what == "latency":
        latency([int(one) for one in options.streams.split(",")])
    elif options.model is None:
        parser.error(f"{options.what} needs --model")
    else:
        measure = {"pause": pause, "flood": flood}[options.what]
        measure(options, options.flags.split())


if __name__ == "__main__":
    main()
