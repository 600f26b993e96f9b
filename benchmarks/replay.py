"""Ways of drafting on texts that the demo model wrote, in simulated time: seconds instead of hours, and no noise.

    python benchmarks/replay.py                                     record the texts on the first call, then compare
    python benchmarks/replay.py --arms "suffix@8;auto" --users 4
    python benchmarks/replay.py --curve 1:10,8:11,16:17,32:19        milliseconds of a step by rows, of your machine

Scheduler, control, speculators and the draft model are real; only the target's decode is replaced by its known answer.
"""

from __future__ import annotations

import argparse
import os
from itertools import product
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from headstart.bench.measure import OFF, Lab, Sampling, Setting, parse_arm
from headstart.bench.replay import CostCurve, Replay, Text, load_texts, save_texts
from headstart.bench.workloads import make_prompts
from headstart.demo import DRAFT, TARGET, path

CURVE = "1:48,2:64,4:97,8:172,16:314,32:637"  # of the 1b-q8 target on two cores
DRAFT_CURVE = "1:3.6,2:4.6,8:11,64:60"
ARMS = "off;suffix@4;suffix@8;draft-model@4;suffix,draft-model@4;auto:suffix;auto:suffix,draft-model"
SEED = 7


def record(workload: str, temperature: float, count: int, num_tokens: int) -> list[Text]:
    """What the demo model answers."""
    lab = Lab(Setting(target=path(TARGET), threads=1))
    scheduler = lab.arm(OFF)
    texts = []
    for i, prompt in enumerate(make_prompts(workload, count, SEED)):
        requests = lab.requests([prompt], Sampling(temperature, seed=i + 1, max_tokens=num_tokens))
        lab.read([prompt], requests)
        answer = lab.run(scheduler, requests).texts[0]
        texts.append(Text(workload, temperature, i + 1, requests[0].prompt, answer))
    return texts


def parse_curve(text: str) -> CostCurve:
    """From "1:48,2:64"."""
    return CostCurve({int(rows): float(ms) for rows, ms in (point.split(":") for point in text.split(","))})


def main() -> None:
    """Print a line per workload, temperature and arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, default=Path("models/replay"), help="folder of recorded texts")
    parser.add_argument("--workloads", default="edit,json,chat,continue")
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument("--arms", default=ARMS, help="separated by semicolons: off, TYPES@LENGTH or auto:TYPES")
    parser.add_argument("--users", type=int, default=1)
    parser.add_argument("--count", type=int, default=24, help="texts of a workload")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer, when recording")
    parser.add_argument("--curve", default=CURVE)
    parser.add_argument("--draft-curve", default=DRAFT_CURVE)
    parser.add_argument("--noise", type=float, default=0.0, help="standard deviation of the log of a step's time")
    args = parser.parse_args()
    args.texts.mkdir(parents=True, exist_ok=True)
    lab = Lab(Setting(target=path(TARGET), draft=path(DRAFT), num_users=args.users, threads=1))
    draft = (lab.draft_engine, parse_curve(args.draft_curve))
    replay = Replay(lab.vocab, parse_curve(args.curve), args.users, draft, args.noise)
    print("workload   temp  arm                        tok/s  x off  tokens/step  accepted  rows wasted/token")
    for workload, temperature in product(args.workloads.split(","), map(float, args.temperatures.split(","))):
        file = args.texts / f"{workload}-{temperature:g}-{args.count}-{args.tokens}.json"
        if not file.exists():
            save_texts(file, record(workload, temperature, args.count, args.tokens))
        texts, plain = load_texts(file), 0.0
        for name in args.arms.split(";"):
            result = replay.run(parse_arm(name), texts)
            plain = plain or result.rate
            print(
                f"{workload:10} {temperature:4g}  {name:24} {result.rate:7.2f} {result.rate / plain:6.2f} "
                f"{result.num_tokens / result.steps:12.2f} {result.accepted / max(1, result.drafted):9.2f} "
                f"{(result.drafted - result.accepted) / result.num_tokens:12.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
