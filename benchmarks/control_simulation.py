"""What control earns on synthetic texts: auto against off, every fixed length and two oracles.

A text is a list of flags: does the text go on as guessed at this place? A draft made at place t is
accepted up to the first place at or after t that does not. So all ways of drafting read the same
text, and hindsight is known. Times are simulated; control sees them with noise (10 %, and now and
then a step that takes three times as long), the scores are the times without it.

"Oracle" knows what will be accepted. "Reachable" knows the state the text is in, all chances and
the cost curve, but not the outcomes: nothing that only sees the past can be expected to beat it.
"Cold" has timed some decodes, as a server does before its first request, and knows nothing else;
"warm" has seen another text of the kind on this machine.

    python -m benchmarks.control_simulation [--tokens 3000]
        [--tiled | --experts | --hybrids | --exact | --mixed | --arrivals]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean

from benchmarks.lib.curves import CostCurve
from benchmarks.lib.simulated_arrivals import LONG, SHORT, ArrivalSimulation, no_drafts
from benchmarks.lib.simulated_rollback import AutoRows, ExactSimulation, HybridSimulation
from benchmarks.lib.simulated_slots import Simulation
from benchmarks.lib.simulated_texts import (
    CURVES,
    EXPERT_CURVES,
    TILED_CURVES,
    WORKLOADS,
    expert_curve,
)

from headstart.control.controller import Controller
from headstart.types import Rows

FIXED_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
SNAPSHOTS = (1, 2, 4, 8)
COPY_SHARE = 0.03  # of a plain step: what a copy of a sequence's state takes


@dataclass(frozen=True)
class Line:
    """One case of a table: tokens a second by policy, and the best setting by hand."""

    name: str
    setting: str
    speeds: dict[str, float]
    compared: tuple[str, ...] = ("cold", "warm")  # policies, each with all that are not

    @property
    def others(self) -> list[str]:
        """What they are compared with."""
        return [policy for policy in self.speeds if policy not in self.compared]

    def __str__(self) -> str:
        speeds = self.speeds
        ratios = [(a, b) for a in self.compared for b in self.others]
        numbers = "".join(f"{speed:8.1f}" for speed in speeds.values())
        return f"{self.name:26}{numbers}{self.setting:>8}  " + "".join(
            f"{speeds[a] / speeds[b]:6.2f}" for a, b in ratios
        )


def by_hand(run: Simulation) -> tuple[str, float]:
    """The best fixed length, and its speed."""
    speeds = {str(k): run.fixed(k).speed for k in FIXED_LENGTHS}
    best = max(speeds, key=lambda k: speeds[k])
    return best, speeds[best]


def warmed_up(run: Simulation, curve: CostCurve | None = None) -> Controller:
    """Control that has timed some decodes of this machine, or of another curve."""
    controller = Controller()
    run.warm_up(controller, curve)
    return controller


def texts_and_machines(tokens: int, seed: int) -> Iterator[Line]:
    """Every machine, text and number of slots: off, best by hand, auto without and with experience,
    and what nobody can reach without knowing the text.
    """
    for curve, workload, num_slots in product(CURVES, WORKLOADS, (1, 4, 8)):
        run = Simulation(workload, curve, num_slots, tokens=tokens // num_slots + 400, seed=seed)
        (best, speed), new, experienced = by_hand(run), warmed_up(run), warmed_up(run)
        run.seed += 1000
        run.auto(experienced)
        run.seed = seed
        speeds = {"off": run.off().speed, "fixed": speed}
        speeds |= {"cold": run.auto(new).speed, "warm": run.auto(experienced).speed}
        speeds |= {"reachable": run.reachable().speed, "oracle": run.oracle().speed}
        yield Line(f"{curve:4} {workload:9} {num_slots}", best, speeds)


def tiled(tokens: int, seed: int) -> Iterator[Line]:
    """Machines that like some widths, after a warm-up: 1 to 8 users, texts that can be guessed and
    texts that cannot, where only padding helps.
    """
    for curve, workload, num_slots in product(TILED_CURVES, ("nothing", "edit"), range(1, 9)):
        run = Simulation(workload, curve, num_slots, tokens=tokens // num_slots + 400, seed=seed)
        (best, speed), controller = by_hand(run), warmed_up(run)
        speeds = {"off": run.off().speed, "fixed": speed, "cold": run.auto(controller).speed}
        speeds["warm"] = run.auto(controller).speed
        yield Line(f"{curve} {workload} {num_slots}", best, speeds)


def experts(tokens: int, seed: int) -> Iterator[Line]:
    """Mixtures of experts, from a warm-up's prices on: its rows are less alike than those of texts,
    which then cost less. Auto is counted from the 51st step on.
    """
    for curve, workload in product(EXPERT_CURVES, ("low", "medium", "mixed", "edit")):
        run = Simulation(workload, curve, 1, tokens=tokens, seed=seed)
        off = run.fixed(0).speed
        best, speed = max(("0", off), by_hand(run), key=lambda one: one[1])
        controller = warmed_up(run, expert_curve(0.0))
        speeds = {"off": off, "fixed": speed}
        speeds["cold"] = run.auto(controller, num_uncounted=50).speed
        speeds["warm"] = run.auto(controller).speed
        yield Line(f"{curve} {workload}", best, speeds)


def hybrids(tokens: int, seed: int) -> Iterator[Line]:
    """Targets whose memory takes nothing back: fixed lengths and auto with some snapshots, which
    make the rows of all users as many, and auto with copies, which make passes of equal lengths.
    """
    for curve, workload, num_slots in product(CURVES, WORKLOADS, (1, 4, 8)):
        length = tokens // num_slots + 300
        run = HybridSimulation(workload, curve, num_slots, tokens=length, seed=seed)
        run.copy_ms = COPY_SHARE * run.cost(1)
        autos = {str(number): run.auto_with(number).speed for number in SNAPSHOTS}
        autos["copies"] = run.auto_with(0).speed
        fixed = max(run.fixed(length).speed for length in FIXED_LENGTHS[:6])
        speeds = {"off": run.off().speed, "fixed": fixed, **autos}
        yield Line(f"{curve} {workload} {num_slots}", "", speeds, tuple(autos))


def exact(tokens: int, seed: int) -> Iterator[Line]:
    """Several users with --exact; also if control priced only the rows of drafts, not padding."""
    for curve, workload, num_slots in product(("cpu", "gpu"), WORKLOADS, (4, 8)):
        run = ExactSimulation(
            workload, curve, num_slots, tokens=tokens // num_slots + 300, seed=seed
        )
        speeds = {"off": run.off().speed, "sum": run.auto(warmed_up(run)).speed}
        policy = AutoRows(run, warmed_up(run), Rows.PADDED)
        speeds["auto"] = run.run(policy.lengths, policy.after).speed
        yield Line(f"{curve} {workload} {num_slots}", "", speeds, ("auto",))


def mixed(tokens: int, seed: int) -> Iterator[Line]:
    """Steps that read prompts beside the answers, after some that did not."""
    for curve, workload, num_slots, rows in product(
        ("cpu", "gpu"), ("mixed", "edit", "halves"), (1, 4), (32, 128)
    ):
        run = Simulation(workload, curve, num_slots, tokens=tokens // num_slots + 400, seed=seed)
        run.mixed_rows = rows
        off = run.fixed(0).speed
        best, speed = max(("0", off), by_hand(run), key=lambda one: one[1])
        speeds = {"off": off, "fixed": speed, "auto": run.auto(warmed_up(run)).speed}
        yield Line(f"{curve} {workload} {num_slots} +{rows}", best, speeds, ("auto",))


def arrivals(count: int, seed: int) -> None:
    """Print what users see who come at random, and those who come back: auto relative to off."""
    print("auto relative to off, mean over three texts and four seeds, and the worst of these")
    cases = [(4, 0.9, LONG), *product((3, 8), (0.0,), (SHORT, LONG))]
    for curve, (num_slots, load, prompt) in product(("cpu", "gpu"), cases):
        ratios: dict[str, list[float]] = {}
        for workload, number in product(("edit", "mixed", "medium"), range(seed, seed + 4)):
            run = ArrivalSimulation(
                workload, curve, num_slots, load=load, prompt=prompt, count=count, seed=number
            )
            off, auto = run.visit(no_drafts), run.under_control()
            for name, value in auto.items():
                ratios.setdefault(name, []).append(value / off[name])
        seen = ", ".join(
            f"{name} {geometric_mean(values):.2f} ({max(values):.2f})"
            for name, values in ratios.items()
        )
        name = f"load {load:g}" if load else f"{'short' if prompt == SHORT else 'long'} prompts"
        print(f"{curve} {num_slots} slots, {name}: {seen}", flush=True)


TABLES = (tiled, experts, hybrids, exact, mixed)


def main() -> None:
    """Print the table that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--arrivals", action="store_true", help="users come, wait and read")
    for rows_of in TABLES:
        flag, about = f"--{rows_of.__name__}", rows_of.__doc__
        choice.add_argument(flag, action="store_const", dest="rows", const=rows_of, help=about)
    parser.set_defaults(rows=texts_and_machines)
    args = parser.parse_args()
    if args.arrivals:
        arrivals(args.tokens // 30, args.seed)
        return
    lines: list[Line] = []
    for line in args.rows(args.tokens, args.seed):
        if not lines:
            print(
                f"tokens a second: {', '.join(line.speeds)}; best setting by hand; "
                f"{', then '.join(line.compared)} by {', '.join(line.others)}"
            )
        lines.append(line)
        print(line, flush=True)
    for policy in lines[0].compared:
        for other in lines[0].others:
            shares = [line.speeds[policy] / line.speeds[other] for line in lines]
            print(
                f"{policy} / {other}: average {sum(shares) / len(shares):.3f}, least "
                f"{min(shares):.3f}"
            )


if __name__ == "__main__":
    main()
