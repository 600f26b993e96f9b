"""Draft models that read the target, here and in llama-server: acceptance and speed on equal files.

    python -m benchmarks.state_drafters --llama-server build/bin/llama-server
    python -m benchmarks.state_drafters --llama-server ... -m target.gguf -md draft.gguf \
        --type draft-eagle3
    python -m benchmarks.state_drafters --llama-server ... -m with_heads.gguf --type draft-mtp

Without files, tiny ones are written whose drafts are always right (tests/drafters.py, and models
with multi-token heads, tests/heads.py): what is compared then is the bookkeeping. A prompt whose
beginning another slot holds comes last, where states may be missing. Both servers draft up to the
same length. Each is warmed up, then they take turns; the median of the runs is printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lib.serving import complete_all, running
from tests import drafters
from tests.heads import CYCLE, aligned, continuation

from headstart.types.errors import HeadstartError

PAIRS: dict[str, Callable[[Path], Path]] = {
    "draft-eagle3": drafters.aligned_eagle3,
    "draft-dflash": drafters.aligned_dflash,
    "draft-dspark": drafters.aligned_dspark,
}
HEADS: dict[str, tuple[str, int]] = {  # the target's architecture and how many heads it has
    "draft-mtp": ("step35", 1),
    "draft-mtp, 3 heads": ("mimo2", 3),
    "draft-mtp, hybrid": ("qwen35", 1),
}
Files = tuple[Path, Path | None]


@dataclass(slots=True)
class Score:
    """What one server did with one group of prompts."""

    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0


def commands(options: argparse.Namespace, files: Files, kind: str) -> dict[str, Any]:
    """Command lines by name, the port left out."""
    kind = kind.split(",")[0]
    target, draft = files
    common = ["-m", str(target), "-np", "4", "-c", "4096", "-t", str(options.threads)]
    common += [] if draft is None else ["-md", str(draft)]
    length = str(options.length)
    theirs = ["--spec-type", kind, "--spec-draft-n-max", length, "--kv-unified", "--no-webui"]
    ours = ["--spec", "fixed", "--draft-max", length, "--spec-state", "none"]
    return {
        "llama-server": [str(options.llama_server), *common, *theirs],
        "headstart": [sys.executable, "-m", "headstart", "serve", *common, *ours],
        "headstart auto": [
            *(sys.executable, "-m", "headstart", "serve", *common),
            *("--spec-state", "none", "--spec-type", kind),
        ],
    }


def prompts(users: int, run: int) -> list[list[list[int]]]:
    """Groups of prompts: new ones, then ones that begin like them and go on otherwise."""
    seeds = range(100 * run, 100 * run + users)
    fresh = [[(seed * 31 + i * (i + seed)) % 250 for i in range(60)] for seed in seeds]
    groups = [fresh, [[*tokens[:40], 7, 9 + seed] for seed, tokens in enumerate(fresh)]]
    return [[[*p, *continuation(p[-1], CYCLE)] for p in group] for group in groups]


def measure(port: int, group: Sequence[Sequence[int]], temperature: float, length: int) -> Score:
    """All prompts of a group at once."""
    bodies = [
        {
            "prompt": list(prompt),
            "n_predict": length,
            "temperature": temperature,
            "seed": 1 + index,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        for index, prompt in enumerate(group)
    ]
    started = time.monotonic()
    answers = complete_all(port, bodies)
    return Score(
        sum(len(answer.tokens) for answer in answers),
        max(answer.last for answer in answers) - started,
        sum(answer.timings.get("draft_n", 0) for answer in answers),
        sum(answer.timings.get("draft_n_accepted", 0) for answer in answers),
    )


def compare(options: argparse.Namespace, kind: str, files: Files, logs: Path) -> None:
    """Print a line per server, number of users, temperature and kind of prompt."""
    with ExitStack() as stack:
        ports = {
            name: stack.enter_context(running(command, logs / f"{kind}-{name}.log"))
            for name, command in commands(options, files, kind).items()
        }
        for port in ports.values():
            measure(port, prompts(4, 99)[0], 1.0, options.tokens)
        number = 0
        for users in (1, 4):
            for temperature in (0.0, 1.0):
                scores: dict[tuple[str, str], list[Score]] = {}
                for _ in range(options.runs):
                    number += 1
                    for what, group in zip(("new", "shared"), prompts(users, number), strict=True):
                        for name, port in list(ports.items()):
                            try:
                                score = measure(port, group, temperature, options.tokens)
                            except (HeadstartError, HTTPException, OSError):
                                del ports[name]  # one that ended takes no part any more
                                print(f"| {kind} | {name}: the server ended |", flush=True)
                                continue
                            scores.setdefault((what, name), []).append(score)
                for (what, name), runs in scores.items():
                    row = f"| {kind} | {users} | {temperature:g} | {what} | {name} |"
                    print(row, summary(runs), flush=True)


def summary(runs: Sequence[Score]) -> str:
    """Tokens per second, draft tokens and their acceptance."""
    rate = median(score.tokens / score.seconds for score in runs)
    drafted = sum(score.drafted for score in runs)
    share = sum(score.accepted for score in runs) / max(1, drafted)
    return f"{rate:.0f} | {drafted / len(runs):.0f} | {share:.3f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("-m", "--model", type=Path, help="target; default: written here")
    parser.add_argument("-md", "--draft", type=Path, help="its draft model")
    kinds = [*PAIRS, *HEADS]
    parser.add_argument("--type", choices=kinds, help="of the draft model; default: all")
    parser.add_argument("--length", type=int, default=4, help="longest draft")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="keep the servers' logs here")
    options = parser.parse_args()
    print("| type | users | temp | prompts | server | tokens/s | drafted | accepted |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for kind in [options.type] if options.type else kinds:
            files: Files = (options.model, options.draft)
            if options.model is None and kind in HEADS:
                files = (aligned(folder / f"{kind}.gguf", *HEADS[kind]), None)
            elif options.model is None:
                target = drafters.aligned_target(folder / "target.gguf")
                files = (target, PAIRS[kind](folder / f"{kind}.gguf"))
            compare(options, kind, files, options.logs or folder)


if __name__ == "__main__":
    main()
