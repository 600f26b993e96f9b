"""What the board costs while it is open: the engine's tokens/s with and without readers of /events.

    python -m benchmarks.page_cost
        the demo model, the shortest steps there are, so the highest share
    python -m benchmarks.page_cost --model target.gguf --boards 1

One server answers the same request again and again, in turn with and without open streams; who
begins changes from pair to pair. Prints the median over pairs of adjacent answers, with a standard
error from resampling: what else the machine does changes more slowly than that, or rarely. Many
boards at once show more clearly what each of them costs. With --boards 0 nobody reads in either
turn: how much of the ratio is noise.

The stream is read as the page reads it and thrown away. What a browser takes of the machine to draw
it is not in this: it mostly runs on another one.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from benchmarks.lib.serving import complete, running

COMMAND = [sys.executable, "-m", "headstart", "serve", "--log-level", "warning"]
PROMPT = "Write a long story about a lighthouse keeper and the sea."


@contextmanager
def boards(port: int, count: int) -> Iterator[None]:
    """So many people have the board open."""
    is_over = threading.Event()
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(count)]
    readers = []
    for connection in connections:
        connection.request("GET", "/events")
        readers.append(threading.Thread(target=read, args=(connection.getresponse(), is_over)))
        readers[-1].start()
    try:
        yield
    finally:
        is_over.set()
        for reader in readers:
            reader.join()  # each stream has a line every second
        for connection in connections:
            connection.close()


def read(stream: http.client.HTTPResponse, is_over: threading.Event) -> None:
    """As the page does, and throw it away."""
    while not is_over.is_set():
        stream.readline()


def speed(port: int, num_tokens: int) -> float:
    """Tokens per second of one answer, by the engine's clock."""
    body = {"prompt": PROMPT, "n_predict": num_tokens, "ignore_eos": True, "temperature": 0}
    return float(complete(port, body).timings["predicted_per_second"])


def main() -> None:
    """Print the ratio with its error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the demo model)")
    parser.add_argument("--spec", default="off", help="off: every token is a step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--boards", type=int, default=10, help="streams that are open")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=400, help="of an answer")
    args = parser.parse_args()
    model = [] if args.model is None else ["-m", str(args.model)]
    flags = ["--spec", args.spec, "--threads", str(args.threads), "--context", "4096"]
    with (
        tempfile.TemporaryDirectory() as folder,
        running([*COMMAND, *model, *flags], Path(folder) / "log") as port,
    ):
        speed(port, args.tokens)
        ratios, plain = [], []
        for pair in range(args.pairs):
            speeds = {}
            for has_board in (False, True) if pair % 2 else (True, False):
                with boards(port, args.boards * has_board):
                    speeds[has_board] = speed(port, args.tokens)
            ratios.append(speeds[True] / speeds[False])
            plain.append(speeds[False])
    ratio = statistics.median(ratios)
    random = Random(0)
    error = statistics.stdev(
        statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(1000)
    )
    print(
        f"{statistics.median(plain):.1f} tokens/s without; with {args.boards} open "
        f"{ratio:.4f} +- {error:.4f} of that ({args.pairs} pairs of {args.tokens} tokens)"
    )
    if args.boards:
        print(f"each costs {(1 - ratio) / args.boards:.2%} +- {error / args.boards:.2%}")


if __name__ == "__main__":
    main()
