"""What a router costs, and what it finds: replicas behind `headstart router` and Ray Serve.

    python -m benchmarks.fleet latency [--ray] [--streams 1,8,32]
    python -m benchmarks.fleet prefixes

latency   the same server asked directly, through the router and through a Ray Serve gateway, in
          turn: milliseconds to the first token and between tokens, median and 99th percentile. The
          server answers at a fixed pace, so what is more than in the first row is the way's.
prefixes  three servers with the embedded model, of which one is kept busy from outside: which
          share of prompt tokens was cached, and of answers' tokens was drafted, when requests go
          round-robin, by prefix, and by prefix and corpus. New servers for each.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import uvicorn
from benchmarks.lib.serving import HEADSTART, Answer, complete, complete_all, running
from benchmarks.lib.workloads import make_prompts

from headstart.config import ServerConfig
from headstart.extras.bench.report import quantile, table_head, table_row
from headstart.gateway.balancer.app import create_app
from headstart.gateway.balancer.balancer import Fleet, Ranking
from headstart.gateway.balancer.options import RoutingOptions
from headstart.gateway.balancer.policy import ranking
from headstart.gateway.balancer.replica import Replica

TOKENS = 25  # of an answer, for latency
ROUNDS = 6  # how often each way is asked, in turn
REPLICAS, CONVERSATIONS, TURNS, CLIENTS = 3, 10, 3, 4


def latency(streams: Sequence[int], with_ray: bool) -> None:
    """Print a table, a row per way and number of streams."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        log = Path(folder)
        scripted = (sys.executable, "-m", "benchmarks.lib.scripted_server")
        port = stack.enter_context(running(scripted, log / "server"))
        backend = ("--backend", f"http://127.0.0.1:{port}")
        ways = {"direct": port}
        ways["router"] = stack.enter_context(running((*HEADSTART, "router", *backend), log / "r"))
        if with_ray:
            ways["Ray Serve"] = stack.enter_context(_ray_gateway(port))
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
                first = [1000 * (one.first - one.sent) for one in found]
                between = [
                    1000 * (b - a) for one in found for a, b in itertools.pairwise(one.arrivals)
                ]
                print(table_row(number, name, _quantiles(first), _quantiles(between)))


def _ask_all(port: int, number: int, turn: int) -> list[Answer]:
    bodies = [{"prompt": f"{turn} {i} " * 50, "n_predict": TOKENS} for i in range(number)]
    return complete_all(port, bodies)


def _quantiles(values: Sequence[float]) -> str:
    return f"{quantile(values, 0.5):.2f}, {quantile(values, 0.99):.2f}"


class ScriptedReplica:
    """Tells the gateway of a server that Ray did not start."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def describe(self) -> dict[str, str]:
        """As `ReplicaActor.describe`."""
        return {"name": "scripted", "url": self._url}


@contextmanager
def _ray_gateway(port: int) -> Iterator[int]:
    import os
    import socket

    from headstart.extras.cluster import deploy

    deploy.secure(os.environ)
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    from headstart.extras.cluster.gateway import GatewayActor

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own: int = probe.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=own))
    options = RoutingOptions(retries=0, max_waiting=1000)
    gateway = serve.deployment(max_ongoing_requests=1000)(serve.ingress()(GatewayActor))
    replica = serve.deployment(ScriptedReplica).bind(f"http://127.0.0.1:{port}")
    serve.run(gateway.bind(ServerConfig(port=own), options, "key", replica), route_prefix="/")
    try:
        yield own
    finally:
        serve.shutdown()
        ray.shutdown()


def round_robin() -> Ranking:
    """One after the other, whatever they know."""
    numbers = itertools.count()

    def rank(candidates: Sequence[Any], conversation: str, last: str) -> list[Any]:
        first = next(numbers) % max(1, len(candidates))
        return [*candidates[first:], *candidates[:first]]

    return rank


def prefix_only() -> Ranking:
    """The policy without its last term."""
    return lambda candidates, conversation, last: ranking(
        [replace(one, corpus_share=0.0) for one in candidates], conversation, last
    )


def prefixes() -> None:
    """Print a table, a row per policy."""
    policies: dict[str, Callable[[], Ranking]] = {
        "round-robin": round_robin,
        "prefix": prefix_only,
        "prefix + corpus": lambda: ranking,
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
        first = [1000 * (one.first - one.sent) for one in answers]
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
            ports = list(pool.map(stack.enter_context, starting))
        for i, text in enumerate(texts):  # into the corpus of one
            complete(ports[i % REPLICAS], _body(f"seen {i}\n{text}"))
        fleet = Fleet(rank=rank)
        for port in ports:
            fleet.add(Replica(str(port), f"http://127.0.0.1:{port}"))
        router = stack.enter_context(_in_thread(fleet))
        complete(router, _body("first"))
        for _ in ports:  # each is asked once, and its corpus then
            complete(router, _body(f"second {_}"))
        time.sleep(2)
        stack.enter_context(_busy(ports[0]))
        answers: list[Answer] = []
        histories = [f"conversation {i}\n{text}" for i, text in enumerate(texts)]
        random = Random(7)
        with ThreadPoolExecutor(CLIENTS) as pool:
            for _ in range(TURNS):
                random.shuffle(histories)  # or round-robin would find the same replica by chance
                found = list(pool.map(lambda text: complete(router, _body(text)), histories))
                answers += found
                histories = [text + "\nand again:\n" + text[-400:] for text in histories]
        return answers


def _body(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "n_predict": 48, "temperature": 0, "ignore_eos": True}


@contextmanager
def _busy(port: int) -> Iterator[None]:
    """Two clients who ask this server directly, all the time."""
    stopped = threading.Event()

    def ask(client: int) -> None:
        for number in itertools.count():
            if stopped.is_set():
                return
            complete(port, _body(f"busy {client} {number} " * 40))

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
def _in_thread(fleet: Fleet) -> Iterator[int]:
    import socket

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = create_app(ServerConfig(), fleet, RoutingOptions(health_seconds=0.3))
    server = _QuietServer(uvicorn.Config(app, log_level="critical", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()
    listener.close()


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("latency", "prefixes"))
    parser.add_argument("--ray", action="store_true", help="latency through Ray Serve as well")
    parser.add_argument("--streams", default="1,8,32", help="streams at the same time")
    arguments = parser.parse_args()
    if arguments.what == "latency":
        latency([int(one) for one in arguments.streams.split(",")], arguments.ray)
    else:
        prefixes()


if __name__ == "__main__":
    main()
