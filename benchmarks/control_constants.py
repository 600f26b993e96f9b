"""How much each constant of control matters: half and twice of it, on simulated texts and machines.

Each constant stands once in the source; a copy of the package with another value runs the same
simulations. The numbers are the change of auto's speed in percent, on average over the cases and
in the worst one. What changes nothing in either direction need not be tuned, and what gains in both
columns is set wrong.

    python -m benchmarks.control_constants [--only budget,probes] [--tokens 800]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headstart.extras.bench.report import table_head, table_row

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "asking",
    "budget",
    "calibration",
    "cost",
    "forecast",
    "model_planner",
    "model_state",
    "probes",
    "token_odds",
)
# what has no half: sizes of tables, and numbers that are there for the computer
FIXED = {"EACH", "LAST", "MAX_UNIT", "MAX_TOKENS", "MAX_TOTAL"}
TEXT_CASES = (
    ("mixed", "cpu", 1),
    ("edit", "gpu", 4),
    ("low", "moe", 1),
    ("per-slot", "cpu", 4),
    ("halves", "gpu", 1),
    ("nothing", "cpu", 4),
    ("edit", "q4_0", 3),
)
MODEL_CASES = (
    ("medium", "cpu", 1, 0),
    ("mixed", "gpu", 4, 0),
    ("nothing", "moe", 1, 0),
    ("looping", "gpu", 1, 4000),
)
# and what asking for one slot takes, in plain steps of one
ASKING_CASES = (
    ("nothing", "gpu", 1, 0.2),
    ("mixed", "gpu", 1, 0.1),
    ("edit", "cpu", 4, 0.05),
    ("halves", "gpu", 4, 0.1),
)
EXPERT_CASES = (("medium", "experts-0.6"), ("mixed", "experts-0.2"))  # after a warm-up

Value = float | tuple["Value", ...]


class Constant(NamedTuple):
    """A number in the source, or a table of numbers that are scaled together."""

    module: str
    name: str
    value: Value
    start: int  # in bytes of the file
    stop: int


def constants(folder: Path) -> Iterator[Constant]:
    """Numbers that are assigned to capitals at the top level, those in pairs one by one; tables of
    pairs as one.
    """
    for module in MODULES:
        source = (folder / f"{module}.py").read_text("utf-8")
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for node in ast.parse(source).body:
            if not isinstance(node, ast.Assign):
                continue
            (target,) = node.targets
            pairs = (
                zip(target.elts, node.value.elts, strict=True)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            for name, value in pairs:
                found = _value(value)
                if isinstance(name, ast.Name) and name.id not in FIXED and found is not None:
                    at = starts[value.lineno - 1] + value.col_offset
                    stop = starts[(value.end_lineno or 1) - 1] + (value.end_col_offset or 0)
                    yield Constant(module, name.id, found, at, stop)


def _value(node: ast.expr) -> Value | None:
    """A number, or a table of pairs of numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    is_table = isinstance(node, ast.Tuple) and all(isinstance(x, ast.Tuple) for x in node.elts)
    if not is_table:
        return None
    table: Any = ast.literal_eval(node)
    return tuple(table) if all(isinstance(x, float) for row in table for x in row) else None


def speeds(tokens: int) -> list[float]:
    """Auto's speed in every case, from the package that stands in the path."""
    from benchmarks.lib.simulated_models import ModelSimulation
    from benchmarks.lib.simulated_slots import Simulation
    from benchmarks.lib.simulated_texts import expert_curve

    from headstart.control import Controller

    found = []
    for workload, curve, num_slots in TEXT_CASES:
        run = Simulation(workload, curve, num_slots, tokens=tokens // num_slots + 200)
        found.append(run.auto().speed)
    for workload, curve, num_slots, prompt in MODEL_CASES:
        length = max(tokens // num_slots + 200, 1200 if prompt else 0)
        model = ModelSimulation(workload, curve, num_slots, tokens=length, prompt=prompt)
        found.append(model.auto().speed)
    for workload, curve, num_slots, ask_share in ASKING_CASES:
        run = Simulation(workload, curve, num_slots, tokens=tokens // num_slots + 200)
        found.append(run.auto_asked(ask_share).speed)
    for workload, curve in EXPERT_CASES:
        run, controller = Simulation(workload, curve, 1, tokens=tokens + 200), Controller()
        run.warm_up(controller, expert_curve(0.0))
        found.append(run.auto(controller).speed)
    return found


def speeds_with(package: Path, tokens: int) -> list[float]:
    """The same in a process of its own."""
    path = os.pathsep.join([str(package), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.control_constants", "--run", str(tokens)]
    environment = {**os.environ, "PYTHONPATH": path}
    out = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [float(x) for x in json.loads(out.stdout)]


def scaled(value: Value, factor: float) -> Value:
    """A count stays a count, and at least 1. What is near 1 is the share that is kept: what is lost
    is halved or doubled.
    """
    if isinstance(value, tuple):
        return tuple(scaled(one, factor) for one in value)
    if isinstance(value, int):
        return max(1, int(value * factor))
    return 1.0 - (1.0 - value) * factor if 0.9 <= value < 1.0 else value * factor


def shown(value: Value) -> str:
    """As it stands in the table."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"


def change(now: list[float], before: list[float]) -> str:
    """Percent on average and in the worst case."""
    changes = [100.0 * (a / b - 1.0) for a, b in zip(now, before, strict=True)]
    return f"{statistics.mean(changes):+.1f} ({min(changes):+.1f})"


def main() -> None:
    """Print a row per constant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(MODULES), help="modules, separated by commas")
    parser.add_argument("--name", help="one constant of them")
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run is not None:
        print(json.dumps(speeds(args.run)))
        return
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder)
        shutil.copytree(ROOT / "src" / "headstart", package / "headstart")
        control = package / "headstart" / "control"
        before = speeds_with(package, args.tokens)
        print(table_head("constant", "value", "half: % (worst)", "twice: % (worst)"))
        for one in constants(control):
            if one.module not in args.only.split(",") or args.name not in (None, one.name):
                continue
            file = control / f"{one.module}.py"
            source, results = file.read_text("utf-8"), []
            for factor in (0.5, 2.0):
                value = scaled(one.value, factor)
                file.write_text(source[: one.start] + repr(value) + source[one.stop :], "utf-8")
                try:
                    results.append(change(speeds_with(package, args.tokens), before))
                except subprocess.CalledProcessError:
                    results.append("impossible")
            file.write_text(source, "utf-8")
            name = f"`{one.module}.{one.name}`"
            print(table_row(name, shown(one.value), *results), flush=True)


if __name__ == "__main__":
    main()
