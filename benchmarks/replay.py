"""Ways of drafting on texts that the demo model wrote, in simulated time: fast, and without noise.

    python -m benchmarks.replay
        record the texts on the first call, then compare
    python -m benchmarks.replay --arms "suffix@8;auto:suffix" --users 4 --oracle
    python -m benchmarks.replay --curve 1:10,8:11,16:17,32:19
        the cost curve of your machine: see headstart bench steps

Scheduler, control, speculators and the draft model are real; only the target's decode is replaced
by its known answer. "all busy" is the ratio over the steps in which every user's text was being
written.

With --oracle a line "hindsight" follows each auto arm: the same speculators on the same texts, with
the draft lengths that somebody would choose who knows the answer (see `oracle`); the last column is
auto's share of that rate.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.lib.arms import OFF, Arm, ArmTotals, answer, parse_arm
from benchmarks.lib.curves import CostCurve
from benchmarks.lib.replay import Replay, Text, load_texts, save_texts
from benchmarks.lib.workloads import make_prompts, parse_cells

from headstart.app.assemble import Models, build_scheduler
from headstart.app.demo import DRAFT, TARGET, path
from headstart.config import Config, EngineConfig, SchedulerConfig
from headstart.scheduler.scheduler import Scheduler
from headstart.types.errors import ConfigError
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

CURVE = "1:48,2:64,4:97,8:172,16:314,32:637"  # of the 1b-q8 target on two cores
DRAFT_CURVE = "1:3.6,2:4.6,8:11,64:60"
ARMS = (
    "off;suffix@4;suffix@8;draft-model@4;suffix,draft-model@4;auto:suffix;auto:suffix,draft-model"
)
SEED = 7
CONTEXT = 1536  # tokens of a user


def load(model: str, arm: Arm, num_users: int = 1) -> Scheduler:
    """An embedded model with room for the drafts of an arm."""
    config = Config(
        engine=EngineConfig(context=CONTEXT * num_users, threads=1, ubatch=512),
        scheduler=SchedulerConfig(parallel=num_users),
        speculation=arm.config(),
    )
    return build_scheduler(config, Models(path(model)))[0]


def record(
    scheduler: Scheduler, workload: str, temperature: float, count: int, num_tokens: int
) -> list[Text]:
    """What the demo model answers, or the answer that is given."""

    def tokenize(text: str) -> list[int]:
        return scheduler.vocab.tokenize(text, add_special=False, parse_special=True)

    texts = []
    for seed, asked in enumerate(make_prompts(workload, count, SEED), 1):
        given = tokenize(asked.script)
        limit = len(given) or min(num_tokens, asked.max_tokens)
        prompt = tokenize(asked.text)[-(CONTEXT - limit - 1) :]
        sampling = SamplingParams(temperature=0.0 if given else temperature, seed=seed)
        request = Request(request_id="", prompt=prompt, sampling=sampling, max_tokens=limit)
        written = given or answer(scheduler, [request]).texts[0]
        texts.append(Text(workload, sampling.temperature, seed, prompt, written))
    return texts


def compare(
    replay: Replay, texts: list[Text], arms: list[Arm], *, with_oracle: bool
) -> dict[str, float]:
    """Print a line per arm; returns which share of hindsight each auto arm reaches."""
    off, shares = replay.run(OFF, texts), {}
    label = f"{texts[0].workload:10} {texts[0].temperature:4g}"
    for arm in arms:
        totals = replay.run(arm, texts)
        print(f"{label}  {line(arm.name, totals, off)}", flush=True)
        if with_oracle and arm.mode == "auto":
            best = replay.hindsight(arm.types, texts)
            shares[arm.name] = totals.rate / best
            name = f"hindsight:{','.join(arm.types)}"
            print(
                f"{label}  {name:29} {best:7.2f} {best / off.rate:6.2f} {shares[arm.name]:65.2f}",
                flush=True,
            )
    return shares


def line(name: str, totals: ArmTotals, off: ArmTotals) -> str:
    """The columns of one arm."""
    return (
        f"{name:29} {totals.rate:7.2f} {totals.rate / off.rate:6.2f} "
        f"{totals.full_rate / off.full_rate:9.2f} "
        f"{totals.acceptance_length:12.2f} "
        f"{totals.acceptance_rate:9.2f} {totals.num_wasted / totals.num_tokens:18.2f}"
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--texts", type=Path, default=Path("models/replay"), help="folder of recorded texts"
    )
    parser.add_argument("--workloads", default="edit,rename,json,chat,continue")
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument(
        "--arms", default=ARMS, help="separated by semicolons: off, TYPES@LENGTH or auto:TYPES"
    )
    parser.add_argument("--users", type=int, default=1)
    parser.add_argument("--count", type=int, default=24, help="texts of a workload")
    parser.add_argument("--tokens", type=int, default=128, help="longest answer, when recording")
    parser.add_argument("--curve", default=CURVE, help="milliseconds of a step by rows")
    parser.add_argument(
        "--attention",
        type=float,
        default=0.0,
        help="further ms of a row per 1000 tokens of context",
    )
    parser.add_argument("--draft-curve", default=DRAFT_CURVE, help="of the draft model")
    parser.add_argument(
        "--oracle", action="store_true", help="also what hindsight would have earned"
    )
    args = parser.parse_args()
    try:
        args.cells = parse_cells(args.workloads, args.temperatures)
        args.arms = [parse_arm(name) for name in args.arms.split(";")]
        args.curve, args.draft_curve = (
            CostCurve.parse(args.curve),
            CostCurve.parse(args.draft_curve),
        )
    except ConfigError as error:
        parser.error(str(error))
    return args


def main() -> None:
    """Print a line per workload, temperature and arm."""
    args = parse()
    args.texts.mkdir(parents=True, exist_ok=True)
    target = load(TARGET, OFF)
    drafts = Arm("drafts", ("suffix",), draft_max=15)  # 16 outputs, as a server's draft model
    replay = Replay(
        target=target.engine,
        vocab=target.vocab,
        curve=args.curve,
        attention=args.attention,
        num_users=args.users,
        draft=(lambda: load(DRAFT, drafts, args.users).engine, args.draft_curve),
    )
    shares: dict[str, list[float]] = {}
    oracle = "  of hindsight" if args.oracle else ""
    print(
        f"{'workload':10} temp  {'arm':29}   tok/s  x off  all busy  tokens/step  accepted  rows "
        f"wasted/token{oracle}"
    )
    for workload, temperature in args.cells:
        file = args.texts / f"{workload}-{temperature:g}-{args.count}-{args.tokens}.json"
        if not file.exists():
            save_texts(file, record(target, workload, temperature, args.count, args.tokens))
        for name, share in compare(
            replay, load_texts(file), args.arms, with_oracle=args.oracle
        ).items():
            shares.setdefault(name, []).append(share)
    for name, values in shares.items():
        print(
            f"{name} has {statistics.mean(values):.3f} of hindsight on average, {min(values):.3f} "
            "at least"
        )


if __name__ == "__main__":
    main()
