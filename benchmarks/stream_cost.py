"""What a streamed token costs the web process: milliseconds of processor time, by clients.

    python -m benchmarks.stream_cost [-m target.gguf] [--clients 1 3 8]

On few cores this time is taken from the decode, whose threads wait for each other. Every client
streams /v1/chat/completions with speculation off, so that every token is an event. Prints the mean
over all rounds, because the system counts in hundredths of a second, and the same for the engine
process. Needs /proc.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from headstart.extras.bench.client import HEADSTART, Client, cpu_seconds, started
from headstart.extras.bench.library import Question


def measure(args: argparse.Namespace, num_clients: int) -> None:
    """Print a line."""
    model = [] if args.model is None else ["-m", str(args.model)]
    slots = ["--parallel", str(num_clients), "--context", str(1024 * num_clients)]
    flags = ["--threads", str(args.threads), "--spec", "off", "--log-level", "warning"]
    fields = {"max_tokens": args.tokens, "temperature": 1, "ignore_eos": True}
    questions = [Question((f"Write a story about {n} lighthouses.",)) for n in range(num_clients)]
    num_tokens, web, engine = 0, 0.0, 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        started([*HEADSTART, "serve", *model, *slots, *flags], Path(folder, "log")) as (
            server,
            url,
        ),
    ):
        client = Client(url)
        client.ask_all(questions, **fields)  # warms up
        for _ in range(args.rounds):
            before = cpu_seconds(server.pid)
            num_tokens += sum(one.num_tokens for one in client.ask_all(questions, **fields).answers)
            own, *children = (b - a for a, b in zip(before, cpu_seconds(server.pid), strict=True))
            web, engine = web + own, engine + max(children)
    print(
        f"{num_clients} clients: web process {1000 * web / num_tokens:.3f} ms/token, "
        f"engine {1000 * engine / num_tokens:.2f}"
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
    args = parser.parse_args()
    for num_clients in args.clients:
        measure(args, num_clients)


if __name__ == "__main__":
    main()
