"""What a model's steps cost on this machine, and what drafts give: one Markdown report.

    python -m benchmarks.gpu_check model-Q4_K_M.gguf model-F16.gguf      under ten minutes on a card
    python -m benchmarks.gpu_check model.gguf --only steps --context 4096

Per model: milliseconds of a step by rows and the curve that `replay.py --curve` takes, what a step
of another shape than the one before it costs (libllama builds a new graph), what reading back the
logits of all rows costs, and tokens/s with speculation off and by itself, for several users, with
the share of a step that is not the decode. Without a model: the embedded one.

Whatever is compared takes turns, so that what slows the machine down slows all alike. The least of
the repetitions is the quiet machine; a median far above it says that something else was running.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would fight with libllama's

from benchmarks.lib.arms import LONGEST_DRAFT, OFF, Arm, ArmTotals
from benchmarks.lib.curves import CostCurve, time_steps
from benchmarks.lib.measure import Lab, Sampling, Setting, compare
from benchmarks.lib.report import Estimate, table_head, table_row
from benchmarks.lib.workloads import make_prompts

from headstart.app import demo
from headstart.app.speculation import AUTO_TYPES
from headstart.engine.devices import list_devices
from headstart.engine.library import system_info, version
from headstart.types import Engine
from headstart.types.errors import HeadstartError

ROWS = "1,2,3,4,5,6,7,8,9,12,16,24,32"
PARTS = ("steps", "speeds")
ARMS = {"off": OFF, "auto": Arm("auto", AUTO_TYPES, "auto")}
WORKLOADS = (("edit", 0.0), ("continue", 0.8))
TOKENS = 128  # of an answer


def machine() -> str:
    """Library and devices, a line each."""
    lines = [f"{version()}; {system_info()}", ""]
    for device in list_devices():
        memory = f", {device.total_bytes / 2**30:.1f} GiB" if device.total_bytes else ""
        lines.append(f"- {device.name}: {device.kind}, {device.description}{memory}")
    return "\n".join(lines)


def steps(engine: Engine, rows: Sequence[int], context: int, num_repeats: int) -> str:
    """A line per number of rows, then the curve."""
    times = time_steps(engine, rows, context=context, num_repeats=num_repeats)
    single = time_steps(engine, rows, context=context, num_repeats=num_repeats, num_outputs=1)
    median = _medians(times.steady)
    changed, one_output = _medians(times.changed), _medians(single.steady)
    first = min(rows)
    columns = ("rows", "ms, least", "ms, median", "x first", "rows/s")
    lines = [table_head(*columns, "ms more, new shape", "ms more, all logits read")]
    for count in sorted(rows):
        ms = median[count]
        lines.append(
            table_row(
                count,
                min(times.steady[count]),
                ms,
                ms / median[first],
                f"{1000.0 * count / ms:.1f}",
                changed[count] - ms,
                ms - one_output[count],
            )
        )
    if len(rows) > 1:
        lines += ["", f"--curve {CostCurve(median)}"]
    return "\n".join(lines)


def _medians(times: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {rows: statistics.median(values) for rows, values in times.items()}


def speeds(lab: Lab, num_groups: int) -> list[str]:
    """A line per workload: off and auto on the same prompts, in turn."""
    schedulers = {name: lab.arm(arm) for name, arm in ARMS.items()}
    users = lab.setting.num_users
    warm = make_prompts("edit", users, seed=0)
    compare(lab, schedulers, [warm], Sampling(0.7, seed=99, max_tokens=32))  # not counted
    lines = []
    for workload, temperature in WORKLOADS:
        prompts = make_prompts(workload, users * num_groups, seed=users)
        groups = [prompts[i : i + users] for i in range(0, len(prompts), users)]
        totals = compare(lab, schedulers, groups, Sampling(temperature, max_tokens=TOKENS))
        off, auto = totals["off"], totals["auto"]
        pairs = zip(auto.runs, off.runs, strict=True)
        ratios = [(a.num_tokens / a.seconds) / (b.num_tokens / b.seconds) for a, b in pairs]
        lines.append(
            table_row(
                users,
                workload,
                f"{temperature:g}",
                f"{off.rate:.1f}",
                f"{auto.rate:.1f}",
                Estimate.of_ratios(ratios),
                auto.acceptance_length,
                f"{_own_share(off):.1%}",
                f"{_own_share(auto):.1%}",
                f"{auto.num_differences(off)}/{len(prompts)}",
            )
        )
    return lines


def _own_share(totals: ArmTotals) -> float:
    """Of the time of all steps, what was not the decode's."""
    records = [step for run in totals.runs for step in run.steps]
    decodes = sum(step.target_ms for step in records) / 1000.0
    return 1.0 - decodes / sum(step.step_seconds for step in records)


def report(path: Path, args: argparse.Namespace) -> None:
    """Print what is asked for, of one model."""
    print(f"\n## {path.name}")
    if "steps" in args.only:
        for context in args.context:
            lab = Lab(
                Setting(target=path, context=context + 2 * LONGEST_DRAFT, threads=args.threads)
            )
            print(f"\n{context} tokens of context, {args.repeats} repetitions\n", flush=True)
            print(steps(lab.plain_engine, args.rows, context, args.repeats), flush=True)
    if "speeds" in args.only:
        columns = ("users", "workload", "temp", "off tok/s", "auto tok/s", "auto / off")
        more = ("tokens a step", "own share, off", "own share, auto", "texts differ")
        print(f"\n{table_head(*columns, *more)}")
        for users in args.users:
            lab = Lab(Setting(target=path, num_users=users, threads=args.threads))
            print("\n".join(speeds(lab, args.groups)), flush=True)


def numbers(text: str) -> list[int]:
    """From "1,4,8"."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Report on the models that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", type=Path, nargs="*", help="GGUF files; default: the embedded one"
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--threads", type=int, help="default: physical cores")
    parser.add_argument(
        "--context", type=numbers, default=[256, 4096], help="tokens in the cache; 256,4096"
    )
    parser.add_argument("--rows", type=numbers, default=numbers(ROWS), help=ROWS)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--users", type=numbers, default=[1, 4, 8], help="1,4,8")
    parser.add_argument("--groups", type=int, default=3, help="texts a user")
    args = parser.parse_args()
    if args.repeats < 1 or args.groups < 1:
        parser.error("--repeats and --groups must be at least 1")
    print(machine(), flush=True)
    try:
        for path in args.models or [demo.path(demo.TARGET)]:
            report(path, args)
    except HeadstartError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
