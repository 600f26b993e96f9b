"""What each way of drafting earns: workloads x temperatures x users, all arms on the same prompts.

    python -m benchmarks.speculation --models models/ --quick
        about five minutes
    python -m benchmarks.speculation --models models/ -o results/spec.json
        everything: hours on two cores
    python -m benchmarks.speculation --models models/ --target 0.4b-f32
        a cost curve like a GPU's
    python -m benchmarks.speculation --show results/spec.json ...
        what was written with -o, an arm a column

Needs the models of benchmarks/inflate.py. Prints a Markdown table after every cell; the JSON file
has everything and is rewritten after every cell, so that a run may be stopped at any time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would fight with libllama's

from benchmarks.lib.arms import OFF, Arm, ArmTotals, Run, parse_arm
from benchmarks.lib.measure import Lab, Sampling, Setting, compare, inflated_models
from benchmarks.lib.oracle import Guesses, Oracle, Recorder, learned_curve
from benchmarks.lib.workloads import WORKLOADS, make_prompts, parse_cells

from headstart.app.speculation import AUTO_TYPES
from headstart.extras.bench.report import MeanRatio, standard_error, table_head, table_row
from headstart.extras.distill.texts import num_looping
from headstart.speculators import Speculator
from headstart.types.errors import ConfigError
from headstart.types.request import Request

CHAIN = (*AUTO_TYPES, "draft-model")
AUTO = Arm("auto", CHAIN, "auto")
RECORDER = Arm("recorder", CHAIN)
ALONE = (
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "suffix",
    "recycling",
    "draft-model",
)
GRID = (2, 4, 8, 16)
QUICK_ARMS = (
    "off",
    "suffix@8",
    "draft-model@4",
    "suffix,draft-model@4",
    "suffix,draft-model@8",
    "auto",
)
QUICK_WORKLOADS = "edit,continue,shift"
CURVE_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def all_arms() -> list[Arm]:
    """Off, every speculator alone, the draft model and the chains at every length, auto."""
    arms = [Arm(f"{name}@8", (name,), draft_max=8) for name in ALONE]
    arms += [Arm(f"draft-model@{n}", ("draft-model",), draft_max=n) for n in GRID if n != 8]
    for chain in (CHAIN, ("suffix", "draft-model")):
        arms += [Arm(f"{','.join(chain)}@{n}", chain, draft_max=n) for n in GRID]
    return [OFF, *arms, AUTO]


class Bench:
    """All arms on one number of users."""

    def __init__(self, setting: Setting, arms: Sequence[Arm], *, with_oracle: bool) -> None:
        self.lab = Lab(setting)
        self.schedulers = {arm.name: self.lab.arm(arm) for arm in arms}
        self._recorder: Recorder | None = None
        self._guesses: list[list[Guesses]] = []
        if with_oracle:
            self.schedulers["recorder"] = self.lab.arm(RECORDER, self._wrap)

    def cell(self, workload: str, num_groups: int, sampling: Sampling) -> dict[str, Any]:
        """Numbers of one workload at one temperature; every cell has prompts of its own."""
        users = self.lab.setting.num_users
        seed = users * 100 + round(10 * sampling.temperature)
        prompts = make_prompts(workload, users * num_groups, seed)
        groups = [prompts[i : i + users] for i in range(0, len(prompts), users)]
        self._guesses.clear()
        all_totals = compare(self.lab, self.schedulers, groups, sampling, self._after)
        recorded = all_totals.pop("recorder", None)
        off = all_totals["off"]
        fixed = [name for name in all_totals if name != "off" and not name.startswith("auto")]
        result: dict[str, Any] = {
            "workload": workload,
            "temperature": sampling.temperature,
            "users": users,
            "texts": len(prompts),
            "looping": sum(num_looping(text) for run in off.runs for text in run.texts)
            / off.num_tokens,
            "best_fixed": max(fixed, key=lambda name: all_totals[name].rate, default="off"),
            "arms": {name: summary(totals, off) for name, totals in all_totals.items()},
        }
        if recorded is not None:
            result["oracle"] = self._oracle(all_totals)
        return result

    def _oracle(self, all_totals: dict[str, ArmTotals]) -> dict[str, Any]:
        assert self._recorder is not None
        runs = [run for totals in all_totals.values() for run in totals.runs]
        curve = learned_curve(runs, self.lab.setting.num_users)
        oracle = Oracle(curve, self._recorder.round_ms)
        speedup = oracle.best(self._guesses) / oracle.plain(self._guesses)
        auto = (
            all_totals["auto"].rate / all_totals["off"].rate if "auto" in all_totals else math.nan
        )
        return {
            "ratio": speedup,
            "auto_share": auto / speedup,
            "curve_ms": {rows: round(curve[rows], 2) for rows in CURVE_ROWS if rows < len(curve)},
            "draft_round_ms": self._recorder.round_ms,
        }

    def _after(self, name: str, run: Run, requests: Sequence[Request]) -> None:
        if name == "recorder" and self._recorder is not None:
            self._guesses.append(
                self._recorder.guesses(run, [len(request.prompt) for request in requests])
            )

    def _wrap(self, speculators: list[Speculator]) -> list[Speculator]:
        self._recorder = Recorder(speculators)
        return [self._recorder]


def summary(totals: ArmTotals, off: ArmTotals) -> dict[str, Any]:
    """One arm in one cell. `error` is the standard error of the ratio over groups, relative.

    `full_ratio` is that of the steps in which every user's text was being written.
    """
    pairs = zip(totals.runs, off.runs, strict=True)
    logs = [math.log((a.num_tokens / a.seconds) / (b.num_tokens / b.seconds)) for a, b in pairs]
    return {
        "rate": totals.rate,
        "ratio": totals.rate / off.rate,
        "full_ratio": totals.full_rate / off.full_rate,
        "error": standard_error(logs),
        "acceptance_length": totals.acceptance_length,
        "acceptance_rate": totals.acceptance_rate,
        "rows_wasted": totals.num_wasted,
        "tokens": totals.num_tokens,
        "differences": totals.num_differences(off),
    }


def table(cells: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line per cell."""
    columns = ("workload", "temp", "users", "off tok/s", "best fixed", "x off", "auto x off")
    more = ("auto / best", "oracle x off", "auto / oracle", "auto length", "wasted rows/tok")
    lines = [table_head(*columns, *more, "looping", "texts differ")]
    for cell in cells:
        arms, oracle = cell["arms"], cell.get("oracle", {})
        off, best = arms["off"], arms[cell["best_fixed"]]
        auto = arms.get("auto", off)
        lines.append(
            table_row(
                cell["workload"],
                f"{cell['temperature']:g}",
                cell["users"],
                f"{off['rate']:.1f}",
                cell["best_fixed"],
                best["ratio"],
                MeanRatio(auto["ratio"], auto["ratio"] * auto["error"]),
                auto["ratio"] / best["ratio"],
                oracle.get("ratio", math.nan),
                oracle.get("auto_share", math.nan),
                auto["acceptance_length"],
                auto["rows_wasted"] / auto["tokens"],
                f"{cell['looping']:.0%}",
                f"{max(arm['differences'] for arm in arms.values())}/{cell['texts']}",
            )
        )
    return "\n".join(lines)


def matrix(cells: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line per cell, a column per arm with its speed in multiples of off; the best is
    bold.
    """
    names = list(dict.fromkeys(name for cell in cells for name in cell["arms"] if name != "off"))
    lines = [table_head("users", "workload", "temp", "texts", "looping", "off tok/s", *names)]
    for cell in cells:
        arms = cell["arms"]
        best = max(arms.values(), key=lambda arm: arm["ratio"])
        shown = [
            _shown(arms[name], is_best=arms[name] is best) if name in arms else "-"
            for name in names
        ]
        about = (cell["users"], cell["workload"], f"{cell['temperature']:g}", cell["texts"])
        speed = (f"{cell['looping']:.0%}", f"{arms['off']['rate']:.1f}")
        lines.append(table_row(*about, *speed, *shown))
    means = [
        _mean([cell["arms"].get(name, {}).get("ratio", math.nan) for cell in cells])
        for name in names
    ]
    lines.append(table_row("", "mean", "", "", "", "", *means))
    return "\n".join(lines)


def _mean(ratios: Sequence[float]) -> str:
    """Of an arm that is in all cells: others would be compared on different ones."""
    return "-" if any(map(math.isnan, ratios)) else f"{statistics.geometric_mean(ratios):.2f}"


def _shown(arm: dict[str, Any], *, is_best: bool) -> str:
    ratio = f"{arm['ratio']:.2f}"
    return f"**{ratio}**" if is_best else ratio


def parse() -> argparse.Namespace:
    """Read the command line; `--quick` fills in what was not given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", type=Path, default=Path("models"), help="folder of inflated models"
    )
    parser.add_argument("--target", default="1b-q8", help="preset of inflate.py, or a GGUF file")
    parser.add_argument("--draft", default="draft-0.06b-q8")
    parser.add_argument(
        "--quick", action="store_true", help="few arms, workloads and texts: about five minutes"
    )
    parser.add_argument("--workloads", help=f"of {','.join(WORKLOADS)}")
    parser.add_argument(
        "--arms", help="separated by semicolons: a name, TYPES@LENGTH or auto:TYPES; default all"
    )
    parser.add_argument("--users", help="default 1,4,8")
    parser.add_argument("--temperatures", help="default 0,1")
    parser.add_argument("--groups", type=int, help="texts per user and cell")
    parser.add_argument("--tokens", type=int, help="longest answer")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--no-oracle", action="store_true")
    parser.add_argument("-o", "--output", type=Path, help="JSON file")
    parser.add_argument(
        "--show", type=Path, nargs="+", help="measure nothing: print a table of such files"
    )
    args = parser.parse_args()
    args.workloads = args.workloads or (QUICK_WORKLOADS if args.quick else ",".join(WORKLOADS))
    args.users = args.users or ("1,4" if args.quick else "1,4,8")
    args.temperatures = args.temperatures or ("0" if args.quick else "0,1")
    args.groups = args.groups or (2 if args.quick else 4)
    args.tokens = args.tokens or (48 if args.quick else 128)
    names = (
        args.arms.split(";")
        if args.arms
        else QUICK_ARMS
        if args.quick
        else [arm.name for arm in all_arms()]
    )
    known = {arm.name: arm for arm in all_arms()}
    try:
        args.arms = [known.get(name) or parse_arm(name) for name in dict.fromkeys(("off", *names))]
        args.cells = parse_cells(args.workloads, args.temperatures)
    except ConfigError as error:
        parser.error(f"{error}; named arms are {'; '.join(known)}")
    return args


def main() -> None:
    """Measure cell by cell."""
    args = parse()
    if args.show:
        print(
            matrix([cell for path in args.show for cell in json.loads(path.read_text())["cells"]])
        )
        return
    target, draft = inflated_models(args.models, args.target, args.draft)
    cells: list[dict[str, Any]] = []
    for users in map(int, args.users.split(",")):
        setting = Setting(target=target, draft=draft, num_users=users, threads=args.threads)
        bench = Bench(setting, args.arms, with_oracle=not args.no_oracle)
        # not counted: costs are learned once per machine
        bench.cell("edit", 1, Sampling(0.7, seed=99, max_tokens=32))
        for workload, temperature in args.cells:
            cells.append(
                bench.cell(workload, args.groups, Sampling(temperature, max_tokens=args.tokens))
            )
            print(table(cells[-1:]), flush=True)
            if args.output:
                args.output.parent.mkdir(parents=True, exist_ok=True)
                args.output.write_text(
                    json.dumps({"arguments": sys.argv[1:], "cells": cells}, indent=1)
                )
    print(f"\n{table(cells)}")


if __name__ == "__main__":
    main()
