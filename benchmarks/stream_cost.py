"""What a streamed token costs the web process: milliseconds of processor time, by clients.

    python -m benchmarks.stream_cost --clients 1 3 8
        the demo model
    python -m benchmarks.stream_cost -m target.gguf --sources src ../older/src
        two trees, their servers in turn

On few cores this time is taken from the decode, whose threads wait for each other. Every client
streams /v1/chat/completions with speculation off, so that every token is an event. Prints the mean
over all rounds, because the system counts in hundredths of a second, and the same for the engine
process. Needs /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.lib.serving import HEADSTART, cpu_seconds, post, started


def stream(port: int, seed: int, num_tokens: int) -> int:
    """Read one answer and throw it away; returns its tokens."""
    body = {
        "messages": [{"role": "user", "content": f"Write a story about {seed} lighthouses."}],
        "max_tokens": num_tokens,
        "stream": True,
        "temperature": 1,
        "seed": seed,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    last = b""
    for line in post(port, "/v1/chat/completions", body):
        if line.startswith(b"data: {"):
            last = line
    return int(json.loads(last[6:])["usage"]["completion_tokens"])


def one_round(pid: int, port: int, num_clients: int, num_tokens: int) -> tuple[float, ...]:
    """Tokens, seconds, and processor seconds of the web process and of the engine process."""
    before, begun = cpu_seconds(pid), time.monotonic()
    with ThreadPoolExecutor(num_clients) as pool:
        jobs = [pool.submit(stream, port, n, num_tokens) for n in range(num_clients)]
        num_all = sum(job.result() for job in jobs)
    web, *children = [b - a for a, b in zip(before, cpu_seconds(pid), strict=True)]
    return num_all, time.monotonic() - begun, web, max(children)


def compare(args: argparse.Namespace, num_clients: int) -> None:
    """Print a line for each tree."""
    model = [] if args.model is None else ["-m", str(args.model)]
    slots = ["--parallel", str(num_clients), "--context", str(1024 * num_clients)]
    flags = ["--threads", str(args.threads), "--spec", "off", "--log-level", "warning"]
    command = [*HEADSTART, "serve", *model, *slots, *flags]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = {}
        for number, source in enumerate(args.sources):
            environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
            log = Path(folder) / f"log{number}"
            servers[source] = stack.enter_context(started(command, log, environment))
        rounds: dict[Path, list[tuple[float, ...]]] = {one: [] for one in args.sources}
        for number in range(args.rounds + 1):
            for source, (process, port) in servers.items():
                result = one_round(process.pid, port, num_clients, args.tokens)
                if number:  # the first one warms up
                    rounds[source].append(result)
    for source, results in rounds.items():
        num_tokens, seconds, web, engine = map(sum, zip(*results, strict=True))
        name = f"{source}, " if len(rounds) > 1 else ""
        print(
            f"{name}{num_clients} clients: web process {1000 * web / num_tokens:.3f} ms/token, "
            f"engine {1000 * engine / num_tokens:.2f}, {num_tokens / seconds:.0f} tokens/s"
        )


def main() -> None:
    """Measure for each number of clients."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, help="a GGUF file (default: the demo model)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 3, 8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=300, help="of an answer")
    parser.add_argument("--sources", type=Path, nargs="+", default=[Path("src")])
    args = parser.parse_args()
    for num_clients in args.clients:
        compare(args, num_clients)


if __name__ == "__main__":
    main()
