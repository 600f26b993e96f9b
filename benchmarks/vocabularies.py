"""How well does a draft model of another vocabulary guess, next to one of the same size that shares
the target's?

    python -m benchmarks.vocabularies [--prompts 20] [--tokens 96]

Acceptance length (tokens a verify step, the target's own included) and rate (accepted of drafted
tokens) at a fixed draft length, by how the draft picks its tokens, with and without token healing;
then the load time with and without the cache of the vocabulary pair. The counts do not depend on
the machine; no draft changes a text. Beside the workloads of `benchmarks.lib` there is `cut`: a
few tokens behind a file that ends inside a word.
"""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.lib.arms import Arm, ArmTotals
from benchmarks.lib.measure import Lab, Sampling, Setting, compare
from benchmarks.lib.workloads import Prompt, make_prompts

from headstart.app import demo
from headstart.config import EngineConfig
from headstart.engine.model import Model
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators import Speculator
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.text.vocabulary import TranslationOptions, VocabularyTranslator
from headstart.types import Vocab

WAYS = ("auto", "coupled", "argmax")
GOAL = 0.8  # of the acceptance length of the draft model that shares the vocabulary


def through(translator: VocabularyTranslator, speculators: list[Speculator]) -> list[Speculator]:
    """The same draft model, behind a translator."""
    (speculator,) = speculators
    assert isinstance(speculator, DraftModelSpeculator)
    return [DraftModelSpeculator(speculator.engine, speculator.options, translator)]


def same_arms(lab: Lab, length: int) -> dict[str, Scheduler]:
    """The draft model that shares the vocabulary."""
    return {
        mode: lab.arm(Arm(mode, ("draft-model",), draft_max=length, sampling=mode)) for mode in WAYS
    }


def other_arms(lab: Lab, length: int, target: Vocab, draft: Vocab) -> dict[str, Scheduler]:
    """The draft model of another vocabulary, healed or not."""
    ways = {"": TranslationOptions(), " unhealed": TranslationOptions(heals=False)}
    arms = {}
    for suffix, options in ways.items():
        translator = VocabularyTranslator(target, draft, options)
        for mode in WAYS:
            arm = Arm(mode + suffix, ("draft-model",), draft_max=length, sampling=mode)
            arms[arm.name] = lab.arm(arm, partial(through, translator))
    return arms


def prompts_of(workload: str, count: int) -> list[Prompt]:
    """Prompts of `benchmarks.lib`, or files that end two letters into their last long word."""
    if workload != "cut":
        return make_prompts(workload, count, seed=7)
    ends = re.compile(r".*[^A-Za-z][A-Za-z]{2}(?=[A-Za-z]{3})", re.DOTALL)
    found = [ends.match(prompt.text) for prompt in make_prompts("continue", count, seed=7)]
    return [Prompt(match.group(), max_tokens=8) for match in found if match]


def cell(totals: ArmTotals) -> str:
    """Acceptance length and rate."""
    return f"{totals.acceptance_length:.2f} ({totals.acceptance_rate:.2f})"


def line(
    workload: str, temperature: float, same: dict[str, ArmTotals], other: dict[str, ArmTotals]
) -> str:
    """One row of the table."""
    ratio = other["auto"].acceptance_length / same["auto"].acceptance_length
    cells = [cell(same[mode]) for mode in WAYS] + [
        cell(other[mode]) for mode in (*WAYS, "auto unhealed")
    ]
    verdict = f"{ratio:.2f}" + ("" if ratio >= GOAL else " (missed)")
    return (
        f"| {workload} | {temperature:g} | "
        + " | ".join([*cells, verdict, str(same["auto"].num_tokens)])
        + " |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=demo.path(demo.TARGET))
    parser.add_argument("--same", type=Path, default=demo.path(demo.DRAFT))
    parser.add_argument("--other", type=Path, default=demo.path(demo.DRAFT_OTHER))
    parser.add_argument("--workloads", default="edit,continue,cut")
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument("--length", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument(
        "--users", type=int, default=4, help="texts at once: faster, no other effect"
    )
    args = parser.parse_args()
    target, draft = (
        Model(path, EngineConfig(), vocab_only=True).vocab for path in (args.target, args.other)
    )
    settings = Setting(target=args.target, num_users=args.users, threads=1, deterministic=True)
    labs = [Lab(replace(settings, draft=path)) for path in (args.same, args.other)]
    arms = same_arms(labs[0], args.length), other_arms(labs[1], args.length, target, draft)
    print(
        "| workload | temperature | same: auto | coupled | argmax | other: auto | coupled | argmax "
        "| unhealed | other / same | tokens |\n" + "|---" * 11 + "|"
    )
    for workload in args.workloads.split(","):
        prompts = prompts_of(workload, args.prompts)
        groups = [prompts[i : i + args.users] for i in range(0, len(prompts), args.users)]
        for temperature in map(float, args.temperatures.split(",")):
            sampling = Sampling(temperature, seed=11, max_tokens=args.tokens)
            all_totals = [
                compare(lab, ways, groups, sampling) for lab, ways in zip(labs, arms, strict=True)
            ]
            print(line(workload, temperature, *all_totals), flush=True)


if __name__ == "__main__":
    main()
