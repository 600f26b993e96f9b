"""Headstart against llama-server of the same llama.cpp, over HTTP, with the same prompts as token
ids.

    python -m benchmarks.against_llama_server --llama-server build/bin/llama-server --models models/

llama-server runs without speculation, with its draft model at four lengths and with three n-gram
speculators: somebody tunes it by hand. Headstart runs off and as it starts by itself. All servers
are loaded, with the same threads, context, batch and cache types, and answer each group of texts in
turn, each time another first, while the others wait: what slows the machine down slows all of them.
Prompts are read before the clock starts (both programs keep them in their slots), so the rate is
that of generation, all users together. At temperature 1 the two programs draw different texts: more
groups, less noise.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.lib.measure import inflated_models
from benchmarks.lib.serving import HEADSTART, Answer, complete_all, running
from benchmarks.lib.workloads import Prompt, make_prompts

from headstart.app.assemble import Models, load_served_model
from headstart.config import Config
from headstart.extras.bench.report import table_head, table_row
from headstart.types import Vocab

LENGTHS = (2, 4, 8, 16)
NGRAMS = ("ngram-simple", "ngram-mod", "ngram-map-k")
WARM_UP_TOKENS = 32
OURS = ("headstart off", "headstart auto")


@dataclass(frozen=True, slots=True)
class Bench:
    """What all servers have in common."""

    llama_server: Path
    target: Path
    draft: Path
    vocab: Vocab
    threads: int
    context: int  # tokens per user
    folder: Path  # for logs and state

    def commands(self, users: int) -> dict[str, list[str]]:
        """Command lines by name, the port left out."""
        common = [
            "-m",
            str(self.target),
            "-np",
            str(users),
            "-c",
            str(self.context * users),
            "-t",
            str(self.threads),
        ]
        common += ["-b", "2048", "-ub", "512"]
        theirs = [str(self.llama_server), *common, "--kv-unified", "--cache-ram", "0", "--no-webui"]
        ours = [*HEADSTART, "serve", *common, "--log-level", "warning"]
        state = str(self.folder / f"state-{users}.json")
        drafting = ["-md", str(self.draft), "--spec-type", "draft-simple", "--spec-draft-n-max"]
        return {
            "llama-server off": theirs,
            **{f"llama-server draft@{n}": [*theirs, *drafting, str(n)] for n in LENGTHS},
            **{f"llama-server {name}": [*theirs, "--spec-type", name] for name in NGRAMS},
            "headstart off": [*ours, "--spec", "off", "--spec-state", state + ".off"],
            "headstart auto": [*ours, "-md", str(self.draft), "--spec-state", state],
        }

    def body(self, prompt: Prompt, slot: int, **values: Any) -> dict[str, Any]:
        """A request for the native endpoint; the slot is fixed, because the prompt waits there."""
        tokens = self.vocab.tokenize(prompt.text, add_special=False, parse_special=True)
        limit = min(values["n_predict"], prompt.max_tokens)
        room = self.context - limit - 32
        return {
            **values,
            "prompt": tokens[-room:],
            "n_predict": limit,
            "id_slot": slot,
            "cache_prompt": True,
        }


@dataclass(slots=True)
class Score:
    """One server on one workload."""

    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0
    rates: list[float] = field(default_factory=list)  # per group of texts

    def add(self, answers: Sequence[Answer], started: float) -> None:
        tokens = sum(len(answer.tokens) for answer in answers)
        seconds = max(answer.last for answer in answers) - started
        self.tokens += tokens
        self.seconds += seconds
        self.rates.append(tokens / seconds)
        self.drafted += sum(answer.timings.get("draft_n", 0) for answer in answers)
        self.accepted += sum(answer.timings.get("draft_n_accepted", 0) for answer in answers)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


Key = tuple[str, float]  # workload, temperature


def groups(users: int, key: Key, count: int) -> list[list[Prompt]]:
    """Texts of one workload, one a user in each group."""
    workload, temperature = key
    prompts = make_prompts(workload, users * count, users * 10 + round(temperature))
    return [prompts[start : start + users] for start in range(0, len(prompts), users)]


def measure(bench: Bench, port: int, group: Sequence[Prompt], score: Score, **values: Any) -> None:
    """One server answers one group; `values` are fields of the requests."""
    bodies = [
        bench.body(prompt, slot, seed=1 + slot, **values) for slot, prompt in enumerate(group)
    ]
    complete_all(port, [body | {"n_predict": 0} for body in bodies])
    started = time.monotonic()
    score.add(complete_all(port, bodies), started)


def print_table(users: int, scores: dict[str, dict[Key, Score]]) -> None:
    """A line per workload and server, then our ratios to the best of theirs."""
    print()
    print(
        table_head(
            f"users {users}", "temp", "server", "tokens/s", "of llama-server off", "drafted",
            "accepted",
        )
    )  # fmt: skip
    keys = list(next(iter(scores.values())))
    for workload, temperature in keys:
        base = scores.get("llama-server off", {}).get((workload, temperature))
        for name, by_key in scores.items():
            score = by_key[workload, temperature]
            ratio = score.rate / base.rate if base else math.nan
            print(
                table_row(
                    workload, f"{temperature:g}", name, score.rate, ratio, score.drafted,
                    score.accepted,
                )
            )  # fmt: skip
    columns = (f"users {users}", "temp", "best of llama-server", "tokens/s", "our off / its off")
    print(f"\n{table_head(*columns, 'our auto / its best')}")
    shares = []
    for key in keys:
        theirs = {name: by_key[key].rate for name, by_key in scores.items() if name not in OURS}
        if not theirs or any(name not in scores for name in OURS):
            continue
        best = max(theirs, key=lambda name: theirs[name])
        off = scores["headstart off"][key].rate / theirs.get("llama-server off", math.nan)
        shares.append(scores["headstart auto"][key].rate / theirs[best])
        print(table_row(key[0], f"{key[1]:g}", best, theirs[best], off, shares[-1]), flush=True)
    if shares:
        print(
            "\nheadstart auto / best hand-tuned llama-server, geometric mean: "
            f"{statistics.geometric_mean(shares):.2f}"
        )


def run_users(bench: Bench, users: int, options: argparse.Namespace) -> dict[str, dict[Key, Score]]:
    """All servers, group by group in turn."""
    keys = [
        (w, t)
        for w in options.workloads.split(",")
        for t in map(float, options.temperatures.split(","))
    ]
    commands = bench.commands(users)
    wanted = options.servers.split(";") if options.servers else list(commands)
    scores = {name: {key: Score() for key in keys} for name in wanted}
    with ExitStack() as stack:
        ports: dict[str, int] = {}
        for name in wanted:
            log = bench.folder / f"{name.replace(' ', '-')}-{users}.log"
            ports[name] = stack.enter_context(running(commands[name], log))
            warm_up = groups(users, ("edit", 0.7), 1)[0]
            measure(bench, ports[name], warm_up, Score(), temperature=0.7, n_predict=WARM_UP_TOKENS)
        for key in keys:
            for turn, group in enumerate(groups(users, key, options.groups)):
                start = turn % len(wanted)
                for name in wanted[start:] + wanted[:start]:
                    measure(
                        bench,
                        ports[name],
                        group,
                        scores[name][key],
                        temperature=key[1],
                        n_predict=options.tokens,
                    )
            print(f"{users} users, {key[0]} {key[1]:g}: done", file=sys.stderr, flush=True)
    return scores


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--llama-server", type=Path, required=True, help="binary of the same llama.cpp"
    )
    parser.add_argument(
        "--models", type=Path, default=Path("models"), help="folder of inflated models"
    )
    parser.add_argument("--target", default="1b-q8", help="preset of inflate.py, or a GGUF file")
    parser.add_argument("--draft", default="draft-0.06b-q8")
    parser.add_argument("--workloads", default="edit,continue,json,chat")
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument("--users", default="1,8")
    parser.add_argument("--servers", help="names, separated by semicolons; default all")
    parser.add_argument("--groups", type=int, default=4, help="texts per user and workload")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer")
    parser.add_argument("--threads", type=int, default=2, help="of every server")
    parser.add_argument("--context", type=int, default=1536, help="tokens per user")
    parser.add_argument("--logs", type=Path, help="keep the servers' logs here")
    parser.add_argument("-o", "--output", type=Path, help="JSON file")
    options = parser.parse_args()
    target, draft = inflated_models(options.models, options.target, options.draft)
    vocab = load_served_model(Config(), Models(target, None, is_demo=False)).vocab
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(
            options.llama_server, target, draft, vocab, options.threads, options.context, folder
        )
        results: dict[str, Any] = {}
        for users in map(int, options.users.split(",")):
            scores = run_users(bench, users, options)
            print_table(users, scores)
            results[str(users)] = {
                name: {
                    f"{w} {t:g}": [s.rate, s.tokens, s.drafted, s.accepted, s.rates]
                    for (w, t), s in by_key.items()
                }
                for name, by_key in scores.items()
            }
            if options.output:
                options.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
