"""What one tenant notices of another, over HTTP.

`pause`: the time between two tokens of a stream while another tenant's long prompt is read.
`flood`: the median time to the first token of a tenant that asks now and then, alone and while
another one always has many requests.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from headstart.extras.bench.client import HEADSTART, exchange, running

ONE, OTHER = "one", "other"  # API keys
FLAGS = ("--spec", "off", "--spec-state", "none", "--api-key", f"{ONE},{OTHER}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--only", choices=("pause", "flood"))
    parser.add_argument("--tokens", type=int, default=32_000, help="of the long prompt")
    parser.add_argument(
        "--requests", type=int, default=20, help="of the tenant that asks now and then"
    )
    parser.add_argument("--flood", type=int, default=100, help="requests that the other always has")
    parser.add_argument("--flags", default="", help="further flags of the server")
    options = parser.parse_args(arguments)
    own = options.flags.split()
    if options.only in (None, "pause"):
        pause(options.model, options.tokens, own)
    if options.only in (None, "flood"):
        flood(options, own)
    return 0


def pause(model: Path, num_tokens: int, flags: Sequence[str]) -> None:
    """Milliseconds between the tokens of a stream, by the quarter of the prompt that is read."""
    flags = ["--context", str(num_tokens + 4096), "--parallel", "2", *flags]
    with serving(model, flags) as url, ThreadPoolExecutor() as pool:
        over, arrivals = Event(), list[float]()
        stream = pool.submit(read, url, text(1, 64), 2048, ONE, over, arrivals)
        while len(arrivals) < 20:
            time.sleep(0.05)
        sent = time.monotonic()
        try:
            read(url, text(2, num_tokens), 1, OTHER)
            done = time.monotonic()
        finally:
            over.set()
        stream.result()
    print(f"pause: {model.stem}, {num_tokens} tokens in {done - sent:.0f} s; ms between two tokens")
    pairs = list(pairwise(arrivals))
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
    with serving(options.model, flags) as url, ThreadPoolExecutor(options.flood) as pool:
        alone = list(visits(url, options.requests, 1000))
        over = Event()
        for number in range(options.flood):
            pool.submit(ask_until, url, number, over)
        time.sleep(10.0)
        try:
            beside = list(visits(url, options.requests, 2000))
        finally:
            over.set()
    first, second = statistics.median(alone), statistics.median(beside)
    print(
        f"flood: {options.model.stem}: the first token after {1e3 * first:.0f} ms alone (median "
        f"of {len(alone)}), {1e3 * second:.0f} ms beside {options.flood} requests of another: "
        f"{second / first:.2f} times as long; at most {1e3 * max(alone):.0f} and "
        f"{1e3 * max(beside):.0f} ms"
    )


def visits(url: str, count: int, seed: int) -> Iterator[float]:
    """Seconds to the first token of requests with a pause between them."""
    random = Random(seed)
    for number in range(count):
        arrivals = list[float]()
        sent = time.monotonic()
        read(url, text(seed + number, 400), 16, ONE, None, arrivals)
        yield arrivals[0] - sent
        time.sleep(random.uniform(0.2, 1.0))


def ask_until(url: str, number: int, over: Event) -> None:
    """One client of the flood, which asks again and again."""
    random = Random(number)
    while not over.is_set():
        read(url, text(number, random.randint(100, 800)), random.randint(20, 200), OTHER, over)
        number += 100_000


def text(seed: int, num_tokens: int) -> list[int]:
    """A prompt like no other."""
    random = Random(seed)
    return [100 + random.randrange(800) for _ in range(num_tokens)]


def read(
    url: str,
    prompt: list[int],
    max_tokens: int,
    key: str,
    over: Event | None = None,
    arrivals: list[float] | None = None,
) -> None:
    """Read an answer until it ends or is not wanted any more; when its tokens came."""
    body: dict[str, Any] = {"prompt": prompt, "n_predict": max_tokens, "stream": True}
    body |= {"temperature": 0, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {key}"}
    for line in exchange(url, "/completion", body, headers):
        if line.startswith(b"data: {") and arrivals is not None:
            arrivals.append(time.monotonic())
        if over is not None and over.is_set():
            break


@contextmanager
def serving(model: Path, flags: Sequence[str]) -> Iterator[str]:
    """The address of a server that is warm."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*HEADSTART, "serve", "-m", str(model), *FLAGS, *flags]
        with running(command, Path(folder) / "log", ONE) as client:
            yield client.url


if __name__ == "__main__":
    sys.exit(main())
