"""Whether `headstart bench` and `headstart tune` tell the truth, with real servers.

    python -m benchmarks.instruments --model models/0.2b-Q4_K_M.gguf [--only bench] [--rounds 6]

`bench`: what it says of the same server as --against, which must be "no difference", and of one
whose decodes were made to take 5 % longer, which must be "faster".
`tune`: speed of the first request of a tuned server by that of its tenth, at least 0.95; and its
tenth may not be slower than that of a server that was not tuned. Both are started in turn for each
round, the one from the same profile, the other times its decodes, and asked the same question by
ten tenants, so that nothing but what control has learned meanwhile can make a difference. The exit
code is 1 if anything is not as it must be.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headstart.extras.bench.client import HEADSTART, TENANT_HEADER, running
from headstart.extras.bench.library import make_questions
from headstart.extras.bench.report import MeanRatio, table_head, table_row

SLOWER = "BENCHMARKS_SLOWER"  # environment: how much longer decodes take, as a share
NUM_REQUESTS = 10
LEAST = 0.95
KEY = "instruments"


def slow_down(share: float) -> None:
    """Let decodes of this process take longer."""
    from headstart.engine.context import LlamaEngine

    launch, wait, began = LlamaEngine.launch, LlamaEngine.wait, [0.0]

    def slower_launch(*args: Any) -> None:
        began[0] = time.perf_counter()
        launch(*args)

    def slower_wait(*args: Any) -> Any:
        logits = wait(*args)
        now = time.perf_counter()
        until = now + share * (now - began[0])
        while time.perf_counter() < until:
            """Sleeping would round."""
        return logits

    vars_of: Any = LlamaEngine
    vars_of.launch, vars_of.wait = slower_launch, slower_wait


def check_bench(flags: Sequence[str], seconds: float) -> bool:
    """Print what bench says of both servers; whether that is right."""
    is_right = True
    for share, expected in ((0.0, "no difference"), (0.05, "faster")):
        other = [sys.executable, "-m", "benchmarks.instruments", "--serve", "serve", *flags]
        other += ["--spec-state", "none"]
        command = [*HEADSTART, "bench", *flags, "--settings", "", "--error", "0.008"]
        command += ["--users", "1", "--workloads", "edit,continue", "--temperatures", "0"]
        command += ["--seconds", str(seconds), "--against", shlex.join(other)]
        slower = {**os.environ, SLOWER: str(share)}
        done = subprocess.run(command, env=slower, stdout=subprocess.PIPE, text=True, check=True)
        (verdict,) = (line for line in done.stdout.splitlines() if "/ best other:" in line)
        is_right &= f": {expected};" in verdict
        print(f"{share:.0%} slower: {verdict}", flush=True)
    return is_right


def check_tune(flags: Sequence[str], rounds: int) -> bool:
    """Print how fast a tuned server is, and in turn one that is not; whether that is right."""
    tuned, bare = list[tuple[float, float]](), list[tuple[float, float]]()
    with tempfile.TemporaryDirectory() as name:
        profile, copy = Path(name, "profile.json"), Path(name, "copy.json")
        tune = [*HEADSTART, "tune", *flags, "--spec-state", str(profile)]
        subprocess.run(tune, check=True, stdout=subprocess.DEVNULL)
        for number in range(rounds):
            shutil.copy(profile, copy)
            tuned.append(_first_and_tenth(flags, str(copy), number))
            bare.append(_first_and_tenth(flags, "none", number))
    print(table_head("server", "first / tenth request", "tokens/s of the tenth"))
    for server, rates in (("tuned", tuned), ("not tuned", bare)):
        print(table_row(server, _first_by_tenth(rates), MeanRatio.of([one[1] for one in rates])))
    tenths = MeanRatio.of_ratios([one[1] / two[1] for one, two in zip(tuned, bare, strict=True)])
    print(f"tenth request, tuned / not tuned: {tenths}: {tenths.verdict}", flush=True)
    return _first_by_tenth(tuned).mean >= LEAST and tenths.verdict != "slower"


def _first_by_tenth(rates: Sequence[tuple[float, float]]) -> MeanRatio:
    return MeanRatio.of_ratios([first / tenth for first, tenth in rates])


def _first_and_tenth(flags: Sequence[str], state: str, number: int) -> tuple[float, float]:
    """Tokens a second of the first and the tenth request of a new server."""
    command = [*HEADSTART, "serve", *flags, "--spec-state", state, "--api-key", KEY]
    command += ["--tenant-header", TENANT_HEADER]
    questions = make_questions(("edit", "continue")[number % 2], 1, f"instruments {number}")
    rates = list[float]()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(command, Path(folder, "log"), KEY) as client,
    ):
        for tenant in range(NUM_REQUESTS):
            played = client.ask_all(questions, tenant=str(tenant), temperature=0.8, max_tokens=128)
            (answer,) = played.answers
            rates.append(answer.num_tokens / (answer.arrivals[-1] - answer.sent))
    return rates[0], rates[-1]


def main() -> int:
    """Check what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a GGUF file, as inflate.py makes them")
    parser.add_argument("--only", choices=("bench", "tune"))
    parser.add_argument("--rounds", type=int, default=6, help="servers started by tune")
    parser.add_argument("--seconds", type=float, default=240.0, help="of each comparison of bench")
    options = parser.parse_args()
    flags = ("-m", options.model, "--parallel", "1", "--context", "2048")
    is_right = True
    if options.only != "tune":
        is_right = check_bench(flags, options.seconds)
    if options.only != "bench":
        is_right &= check_tune(flags, options.rounds)
    return 0 if is_right else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        from headstart.app.cli.main import main as serve

        sys.exit(serve(sys.argv[2:]))
    sys.exit(main())
if __name__ == "__mp_main__" and float(os.environ.get(SLOWER, 0.0)):
    slow_down(float(os.environ[SLOWER]))  # the engine process imports the main module of its parent
