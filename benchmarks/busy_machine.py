"""What a second program on the same cores costs, by how long idle threads spin before they sleep.

    python -m benchmarks.busy_machine MODEL.gguf

Milliseconds of a step of one and of five rows, alone and beside a second copy of the same program.
300000 is about libgomp's own choice; Headstart sets 3000 unless OMP_WAIT_POLICY or GOMP_SPINCOUNT
is set. Needs OpenMP (Linux).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

SPINS = ("300000", "30000", "3000", "300")
ROWS = (1, 5)
COMMAND = [
    sys.executable,
    str(Path(__file__).with_name("step_costs.py")),
    "--rows",
    ",".join(map(str, ROWS)),
]


def measure(model: Path, spins: str, *, beside: bool, repeats: int) -> list[float]:
    """Median milliseconds per number of rows."""
    environment = {**os.environ, "GOMP_SPINCOUNT": spins}
    command = [*COMMAND, str(model), "--repeats"]
    other = None
    if beside:
        other = subprocess.Popen([*command, "1000000"], env=environment, stdout=subprocess.DEVNULL)
    try:
        done = subprocess.run(
            [*command, str(repeats)], env=environment, capture_output=True, text=True, check=True
        )
    finally:
        if other is not None:
            other.kill()
            other.wait()
    curve = re.findall(r"(\d+):([\d.]+)", done.stdout.splitlines()[-1])
    return [float(ms) for _, ms in curve]


def main() -> None:
    """Print a line per number of spins."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("spins    alone, ms of 1 and 5 rows    beside another, ms of 1 and 5 rows")
    for spins in SPINS:
        cells = []
        for beside, repeats in ((False, 20), (True, 6)):
            rounds = [
                measure(args.model, spins, beside=beside, repeats=repeats)
                for _ in range(args.rounds)
            ]
            cells.append(
                " ".join(f"{statistics.median(ms):9.1f}" for ms in zip(*rounds, strict=True))
            )
        print(f"{spins:8} {cells[0]:28} {cells[1]}", flush=True)


if __name__ == "__main__":
    main()
