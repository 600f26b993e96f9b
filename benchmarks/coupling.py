"""Does a draft model that shares the request's random numbers guess better than one that takes the
likeliest token?

    python -m benchmarks.coupling [--texts 12] [--tokens 128]

Acceptance rate (accepted of drafted tokens) and acceptance length (tokens a verify step, the
target's own included) of coupled and argmax drafting with fixed lengths on the embedded demo pair,
or on another pair. Counts only, no times: the result does not depend on the machine. Both ways
leave the output alone, so both see the same texts.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.lib.arms import OFF, Arm, ArmTotals
from benchmarks.lib.measure import Lab, Sampling, Setting, compare
from benchmarks.lib.workloads import make_prompts

from headstart.app import demo

WAYS = ("coupled", "argmax")


def arms(lengths: list[int]) -> list[Arm]:
    """Both ways at each length."""
    return [
        Arm(f"{way}@{n}", ("draft-model",), draft_max=n, sampling=way)
        for n in lengths
        for way in WAYS
    ]


def line(workload: str, temperature: float, length: int, all_totals: dict[str, ArmTotals]) -> str:
    """One row of the table."""
    coupled, argmax = (all_totals[f"{way}@{length}"] for way in WAYS)
    return (
        f"| {workload} | {temperature:g} | {length} | {coupled.acceptance_rate:.3f} | "
        f"{argmax.acceptance_rate:.3f} "
        f"| {coupled.acceptance_length:.2f} | {argmax.acceptance_length:.2f} "
        f"| {coupled.acceptance_length / argmax.acceptance_length:.2f} | {coupled.num_tokens} "
        f"| {coupled.num_differences(argmax)} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=demo.path(demo.TARGET))
    parser.add_argument("--draft", type=Path, default=demo.path(demo.DRAFT))
    parser.add_argument("--workloads", default="edit,continue,chat")
    parser.add_argument("--temperatures", default="0.6,1,1.5")
    parser.add_argument("--lengths", default="4,8")
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument(
        "--users", type=int, default=4, help="texts at once: faster, no other effect"
    )
    args = parser.parse_args()
    lengths = [int(n) for n in args.lengths.split(",")]
    lab = Lab(Setting(target=args.target, draft=args.draft, num_users=args.users))
    schedulers = {arm.name: lab.arm(arm) for arm in (OFF, *arms(lengths))}
    print(
        "| workload | temperature | length | rate coupled | rate argmax | length coupled | length "
        "argmax "
        "| coupled / argmax | tokens | texts differ |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for workload in args.workloads.split(","):
        prompts = make_prompts(workload, args.texts, seed=7)
        groups = [prompts[i : i + args.users] for i in range(0, len(prompts), args.users)]
        for temperature in map(float, args.temperatures.split(",")):
            all_totals = compare(
                lab, schedulers, groups, Sampling(temperature, seed=11, max_tokens=args.tokens)
            )
            for length in lengths:
                print(line(workload, temperature, length, all_totals), flush=True)


if __name__ == "__main__":
    main()
