"""Whether a tuned server is as fast at once, with real servers.

    python -m benchmarks.instruments --model models/0.2b-Q4_K_M.gguf [--rounds 6]

The first request of a tuned server must have at least 0.95 of the speed of its tenth, which may not
be slower than that of a server that was not tuned. Both are started in turn for each round, the one
from the same profile, the other times its decodes, and asked the same question by ten tenants, so
that nothing but what control has learned meanwhile can make a difference. The exit code is 1 if it
is not so. Whether `headstart bench` finds planted differences is tested on a pretended server.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headstart.extras.bench.client import HEADSTART, TENANT_HEADER, running
from headstart.extras.bench.library import make_questions
from headstart.extras.bench.report import MeanRatio, table_head, table_row

NUM_REQUESTS = 10
LEAST = 0.95
KEY = "instruments"


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
            (answer,) = client.ask_all(
                questions, tenant=str(tenant), temperature=0.8, max_tokens=128
            )
            rates.append(answer.num_tokens / (answer.arrivals[-1] - answer.sent))
    return rates[0], rates[-1]


def main() -> int:
    """Check it; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a GGUF file, as inflate.py makes them")
    parser.add_argument("--rounds", type=int, default=6, help="servers started by tune")
    options = parser.parse_args()
    flags = ("-m", options.model, "--parallel", "1", "--context", "2048")
    return 0 if check_tune(flags, options.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
