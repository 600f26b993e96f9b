"""Clients that come as people do: Headstart against llama-server, time to first token included.

    python -m benchmarks.load --llama-server build/bin/llama-server --models models/
    python -m benchmarks.load ... --target 1b-Q4_0.gguf --clients 1,3,5,8 --loads burst
    python -m benchmarks.load ... --target 0.2b-Q4_0.gguf,0.2b-q8.gguf --clients 1,3,4,8,16
    python -m benchmarks.load ... --servers "llama-server off;headstart off --prefill-chunk 512"

    burst      all at once, behind one system prompt of some hundred tokens; every prompt is new
    arrivals   one after another at random times (Poisson), one in four with a long prompt
    returning  more conversations than slots, in turns: each comes back after all others

All servers are loaded, with the same threads, context and cache types, and answer each load in
turn, each time another first: what slows the machine down slows all of them. Prints tokens/s from
the first request to the last token, and the median and 99th percentile of the time to the first
token (TTFT) and of the longest wait between two tokens (ITL), in milliseconds. At the end a line a
cell: off and auto against llama-server's off and its best. A ratio is the mean of the rounds'
ratios, with its standard error. llama-server's best is the best mean of several, which noise alone
raises.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.lib.serving import HEADSTART, Answer, complete, running
from benchmarks.lib.workloads import make_prompts

from headstart.extras.bench.report import MeanRatio, quantile, table_head, table_row

TURNS = 2  # of a conversation that returns
LONG = 6  # prompts that make a long one
KINDS = ("llama-server off", "headstart off", "headstart auto")  # that the summary compares
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it is sent, in seconds after the start, or after the one before it."""

    after: float
    body: Body


Load = Callable[[int, int, float], list[list[Arrival]]]
"""(clients, seed, temperature) -> what each client sends, one request after the other."""


def burst(clients: int, seed: int, temperature: float) -> list[list[Arrival]]:
    """All at once behind one system prompt."""
    texts = [prompt.text for prompt in make_prompts("edit", clients + 2, seed)]
    system = texts[0] + texts[1]
    return [
        [Arrival(0.0, _body(system + text, temperature, i))] for i, text in enumerate(texts[2:])
    ]


def arrivals(clients: int, seed: int, temperature: float) -> list[list[Arrival]]:
    """Three requests a client at random times; every fourth prompt is long."""
    random = Random(seed)
    texts = [prompt.text for prompt in make_prompts("continue", 3 * clients * LONG, seed)]
    sequences = []
    for client in range(clients):
        requests = []
        for turn in range(3):
            number = 3 * client + turn
            own = texts[number * LONG : (number + 1) * LONG]
            text = "".join(own) if number % 4 == 3 else own[0]
            requests.append(Arrival(random.expovariate(0.5), _body(text, temperature, number)))
        sequences.append(requests)
    return sequences


def returning(clients: int, seed: int, temperature: float) -> list[list[Arrival]]:
    """Each client leads three conversations in turns, so that none finds its slot as it left it."""
    prompts = make_prompts("chat", 3 * clients * TURNS, seed)
    texts = [prompt.text for prompt in prompts]
    sequences = []
    for client in range(clients):
        own = texts[3 * client * TURNS : 3 * (client + 1) * TURNS]
        conversations = [own[:TURNS], own[TURNS : 2 * TURNS], own[2 * TURNS :]]
        sequences.append(
            [
                Arrival(0.0, _body("".join(conversation[: turn + 1]), temperature, turn))
                for turn in range(TURNS)
                for conversation in conversations
            ]
        )
    return sequences


LOADS: dict[str, Load] = {"burst": burst, "arrivals": arrivals, "returning": returning}


def _body(text: str, temperature: float, seed: int) -> Body:
    return {"prompt": text, "temperature": temperature, "seed": seed, "cache_prompt": True}


@dataclass(slots=True)
class Score:
    """One server under one load, over all rounds."""

    rates: list[float] = field(default_factory=list)  # tokens/s, one a round
    first: list[float] = field(default_factory=list)  # seconds, one a request
    between: list[float] = field(default_factory=list)  # seconds, the longest of each request

    def add(self, answers: Sequence[Answer]) -> None:
        num_tokens = sum(len(answer.tokens) for answer in answers)
        began = min(answer.sent for answer in answers)
        self.rates.append(num_tokens / (max(answer.last for answer in answers) - began))
        self.first += [answer.first - answer.sent for answer in answers]
        for answer in answers:
            waits = [b - a for a, b in zip(answer.arrivals, answer.arrivals[1:], strict=False)]
            if waits:
                self.between.append(max(waits))

    @property
    def rate(self) -> float:
        return statistics.fmean(self.rates)

    def relative_to(self, other: Score) -> MeanRatio:
        """The mean of the rounds' ratios and its error."""
        return MeanRatio.of([a / b for a, b in zip(self.rates, other.rates, strict=True)])


def play(port: int, sequences: Sequence[Sequence[Arrival]], num_tokens: int) -> list[Answer]:
    """Run all clients against one server; each waits for its answer before it goes on."""
    answers: list[Answer] = []
    failures: list[Exception] = []

    def run(client: Sequence[Arrival]) -> None:
        try:
            for arrival in client:
                time.sleep(arrival.after)
                answers.append(complete(port, {**arrival.body, "n_predict": num_tokens}))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in sequences]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return answers


def commands(
    options: argparse.Namespace, target: Path, clients: int, folder: Path
) -> dict[str, list[str]]:
    """Command lines by name, the port left out; what follows a known name are further flags."""
    context = str(options.context * clients)
    common = ["-m", str(target), "-np", str(clients), "-c", context, "-t", str(options.threads)]
    theirs = [str(options.llama_server), *common, "-b", "2048", "-ub", "512", "--kv-unified"]
    theirs += ["--no-webui"]
    ours = [*HEADSTART, "serve", *common, "--log-level", "warning"]
    draft = str(options.models / options.draft)
    every = {
        "llama-server off": theirs,
        "llama-server ngram-mod": [*theirs, "--spec-type", "ngram-mod"],
        "llama-server draft@4": [
            *theirs, "-md", draft, "--spec-type", "draft-simple", "--spec-draft-n-max", "4",
        ],
        "headstart off": [*ours, "--spec", "off"],
        "headstart auto": ours,
        "headstart auto + draft": [*ours, "-md", draft],
    }  # fmt: skip
    chosen = {}
    for number, wanted in enumerate(options.servers.split(";") if options.servers else every):
        name = max((name for name in every if wanted.startswith(name)), key=len, default="")
        if not name:
            raise SystemExit(f"--servers: there is no {wanted!r}, but {'; '.join(every)}")
        chosen[wanted] = [*every[name], *shlex.split(wanted.removeprefix(name))]
        if name.startswith("headstart"):
            state = folder / f"state-{target.stem}-{clients}-{number}.json"
            chosen[wanted] += ["--spec-state", str(state)]
    return chosen


def run_clients(
    options: argparse.Namespace, target: Path, clients: int, folder: Path
) -> dict[str, dict[str, Score]]:
    """All servers, all loads and rounds in turn; prints a table per load and temperature, and
    returns the scores by server, by table.
    """
    tables: dict[str, dict[str, Score]] = {}
    with ExitStack() as stack:
        ports = {}
        for name, command in commands(options, target, clients, folder).items():
            log = folder / f"{name.replace(' ', '-')}-{clients}.log"
            ports[name] = stack.enter_context(running(command, log))
            play(ports[name], burst(clients, 999, 0.7), 32)  # warm
        names = list(ports)
        for load in options.loads.split(","):
            for temperature in map(float, options.temperatures.split(",")):
                scores = {name: Score() for name in names}
                for turn in range(options.rounds):
                    sequences = LOADS[load](clients, 100 * turn + clients, temperature)
                    for name in names[turn % len(names) :] + names[: turn % len(names)]:
                        scores[name].add(play(ports[name], sequences, options.tokens))
                title = f"{target.stem}, {load}, {clients} clients, temperature {temperature:g}"
                print_table(title, scores)
                tables[title] = scores
    return tables


def print_table(title: str, scores: dict[str, Score]) -> None:
    """A line per server; the ratio is to llama-server off."""
    base = scores.get("llama-server off")
    print()
    print(table_head(title, "tokens/s", "of its off", "TTFT p50", "p99", "ITL p50", "p99"))
    for name, score in scores.items():
        ratio = score.relative_to(base) if base else ""
        times = [
            f"{1000 * quantile(values, share):.0f}"
            for values in (score.first, score.between)
            for share in (0.5, 0.99)
        ]
        print(table_row(name, f"{score.rate:.1f}", ratio, *times))
    sys.stdout.flush()


def print_summary(tables: dict[str, dict[str, Score]]) -> None:
    """A line per table: ratios of tokens/s and of the median time to the first token."""
    print()
    print(
        table_head(
            "cell", "off / its off", "auto / its best", "auto / off", "TTFT: auto / its best"
        )
    )
    means: list[list[float]] = []
    for title, scores in tables.items():
        theirs = [score for name, score in scores.items() if name.startswith("llama-server")]
        auto = max(
            (score for name, score in scores.items() if name.startswith("headstart auto")),
            key=lambda score: score.rate,
        )
        off, best = scores["headstart off"], max(theirs, key=lambda score: score.rate)
        ratios = [
            off.relative_to(scores["llama-server off"]),
            auto.relative_to(best),
            auto.relative_to(off),
        ]
        first = min(quantile(score.first, 0.5) for score in theirs)
        first = quantile(auto.first, 0.5) / first
        means.append([*(ratio.mean for ratio in ratios), first])
        print(table_row(title, *ratios, first))
    overall = [statistics.geometric_mean(column) for column in zip(*means, strict=True)]
    print(table_row("geometric mean", *overall), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-server", type=Path, required=True, help="of the same llama.cpp")
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument(
        "--target", default="1b-Q4_K_M.gguf", help="files in the models' folder, by comma"
    )
    parser.add_argument("--draft", default="draft-0.06b-q8.gguf")
    parser.add_argument("--clients", default="1,3,8")
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument(
        "--servers",
        default="",
        help="names, separated by ; and each with further flags if wanted (all by default)",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--context", type=int, default=2048, help="tokens per client")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    tables: dict[str, dict[str, Score]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.target.split(","):
            for clients in map(int, options.clients.split(",")):
                target = options.models / name
                tables |= run_clients(options, target, clients, Path(folder))
    if all(
        any(name.startswith(kind) for name in scores)
        for scores in tables.values()
        for kind in KINDS
    ):
        print_summary(tables)


if __name__ == "__main__":
    main()
