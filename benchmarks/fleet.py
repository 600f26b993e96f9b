"""What a router costs, and what it finds: replicas behind `headstart router`.

    python -m benchmarks.fleet latency [--streams 1,8,32]
    python -m benchmarks.fleet prefixes

latency   the same server asked directly and through the router, in turn: milliseconds to the first
          token and between tokens, median and 99th percentile. The server answers at a fixed pace,
          so what is more than in the first row is the router's.
prefixes  three servers with the embedded model, of which one is kept busy from outside: which
          share of prompt tokens was cached, and of answers' tokens was drafted, when requests go
          round-robin and by prefix. New servers for each.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import uvicorn
from benchmarks.lib.workloads import make_prompts

from headstart.config import ServerConfig
from headstart.extras.bench.client import HEADSTART, Answer, Client, running
from headstart.extras.bench.report import quantile, table_head, table_row
from headstart.gateway.balancer.app import create_app
from headstart.gateway.balancer.balancer import Fleet, Ranking
from headstart.gateway.balancer.options import RoutingOptions
from headstart.gateway.balancer.policy import ranking
from headstart.gateway.balancer.replica import Replica

TOKENS = 25  # of an answer, for latency
ROUNDS = 6  # how often each way is asked, in turn
REPLICAS, CONVERSATIONS, TURNS, CLIENTS = 3, 10, 3, 4


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
                found = _ask_all(way, number, turn)
                if turn:  # the first makes connections
                    answers[name] += found
            for name, found in answers.items():
                first = [1000 * one.first_seconds for one in found]
                between = [
                    1000 * (b - a) for one in found for a, b in itertools.pairwise(one.arrivals)
                ]
                print(table_row(number, name, _quantiles(first), _quantiles(between)))


def _ask_all(client: Client, number: int, turn: int) -> list[Answer]:
    bodies = [{"prompt": f"{turn} {i} " * 50, "max_tokens": TOKENS} for i in range(number)]
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(lambda body: client.stream("/v1/completions", body), bodies))


def _quantiles(values: Sequence[float]) -> str:
    return f"{quantile(values, 0.5):.2f}, {quantile(values, 0.99):.2f}"


def round_robin() -> Ranking:
    """One after the other, whatever they know."""
    numbers = itertools.count()

    def rank(costs: Mapping[str, float], conversation: str, last: str) -> list[str]:
        names, first = list(costs), next(numbers) % len(costs)
        return names[first:] + names[:first]

    return rank


def prefixes() -> None:
    """Print a table, a row per policy."""
    policies: dict[str, Callable[[], Ranking]] = {
        "round-robin": round_robin,
        "prefix": lambda: ranking,
    }
    print(
        table_head(
            "policy", "prompt tokens cached", "answer tokens drafted", "first token p50, p99 (ms)"
        )
    )
    for name, policy in policies.items():
        answers = _run_policy(policy())
        timings = [one.timings for one in answers]
        cached = sum(one["cache_n"] for one in timings)
        read = sum(one["prompt_n"] for one in timings)
        drafted = sum(one.get("draft_n_accepted", 0) for one in timings)
        written = sum(one["predicted_n"] for one in timings)
        first = [1000 * one.first_seconds for one in answers]
        shares = (f"{cached / (cached + read):.0%}", f"{drafted / written:.0%}")
        print(table_row(name, *shares, _quantiles(first)), flush=True)


def _run_policy(rank: Ranking) -> list[Answer]:
    """Conversations over texts that one server each has seen, while the first server is busy."""
    texts = [one.text for one in make_prompts("edit", CONVERSATIONS, 7)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        command = [*HEADSTART, "serve", "--context", "4096", "-np", "2", "--threads", "1"]
        command += ["--spec-type", "suffix", "--spec-state", "none"]
        starting = [running(command, Path(folder) / str(i)) for i in range(REPLICAS)]
        with ThreadPoolExecutor(REPLICAS) as pool:
            clients = list(pool.map(stack.enter_context, starting))
        for i, text in enumerate(texts):  # into the corpus of one
            _complete(clients[i % REPLICAS], f"seen {i}\n{text}")
        fleet = Fleet(rank=rank)
        for client in clients:
            fleet.add(Replica(client.url, client.url))
        router = stack.enter_context(_in_thread(fleet))
        _complete(router, "first")
        stack.enter_context(_busy(clients[0]))
        answers: list[Answer] = []
        histories = [f"conversation {i}\n{text}" for i, text in enumerate(texts)]
        random = Random(7)
        with ThreadPoolExecutor(CLIENTS) as pool:
            for _ in range(TURNS):
                random.shuffle(histories)  # or round-robin would find the same replica by chance
                found = list(pool.map(lambda text: _complete(router, text), histories))
                answers += found
                histories = [text + "\nand again:\n" + text[-400:] for text in histories]
        return answers


def _complete(client: Client, prompt: str) -> Answer:
    body = {"prompt": prompt, "max_tokens": 48, "temperature": 0, "ignore_eos": True}
    return client.stream("/v1/completions", body)


@contextmanager
def _busy(client: Client) -> Iterator[None]:
    """Two clients who ask this server directly, all the time."""
    stopped = threading.Event()

    def ask(user: int) -> None:
        for number in itertools.count():
            if stopped.is_set():
                return
            _complete(client, f"busy {user} {number} " * 40)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    yield
    stopped.set()
    for thread in threads:
        thread.join()


class _QuietServer(uvicorn.Server):
    def capture_signals(self) -> Any:
        return nullcontext()


@contextmanager
def _in_thread(fleet: Fleet) -> Iterator[Client]:
    import socket

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = create_app(ServerConfig(), fleet, RoutingOptions(health_seconds=0.3))
    server = _QuietServer(uvicorn.Config(app, log_level="critical", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Client(f"http://127.0.0.1:{listener.getsockname()[1]}")
    server.should_exit = True
    thread.join()
    listener.close()


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("latency", "prefixes"))
    parser.add_argument("--streams", default="1,8,32", help="streams at the same time")
    arguments = parser.parse_args()
    if arguments.what == "latency":
        latency([int(one) for one in arguments.streams.split(",")])
    else:
        prefixes()


if __name__ == "__main__":
    main()
