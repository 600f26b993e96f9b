"""Draft models of one target compared: acceptance length, and what a draft token costs.

    python -m benchmarks.draft_heads -md demo-draft.gguf -md demo-eagle3.gguf

Prompts are made of this package's own functions, which the demo models never saw: rename, repeat,
describe, list the calls, continue. One request at a time, drafts of a fixed length, nothing
filtered. The time of a draft token is processor time of the speculator's calls, reading included.
"""

from __future__ import annotations

import argparse
import ast
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from benchmarks.equality import generate
from training.corpus import Function, describe, functions_of, list_calls, rename, repeat

from headstart.app import demo
from headstart.app.assemble import Models, build_scheduler
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.engine.drafters import speculator_for
from headstart.engine.model import Model
from headstart.sampling import SamplingParams
from headstart.scheduler.scheduler import Scheduler
from headstart.types import Draft, DraftRequest
from headstart.types.request import Request

ANSWER = "<|im_start|>assistant\n"
TASKS = (rename, repeat, describe, list_calls)
MAX_CHARS = 700


class TimedCalls:
    """Processor time that a speculator's calls took."""

    def __init__(self, scheduler: Scheduler) -> None:
        (self.guarded,) = scheduler.drafting.speculators.values()
        self.seconds = 0.0
        # in place: what wraps a speculator would have to follow its whole contract
        self._propose = self.guarded.speculator.propose
        self.guarded.speculator.propose = self.propose  # type: ignore[method-assign]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        started = time.thread_time()
        drafts = self._propose(requests)
        self.seconds += time.thread_time() - started
        return drafts


def make_prompts(num: int) -> list[str]:
    """Every fifth is code to continue, the others are questions about functions."""
    random, found = Random(7), list[Function]()
    for path in sorted(Path(demo.__file__).parents[1].rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found += functions_of(text, ast.parse(text), MAX_CHARS)
    random.shuffle(found)
    prompts: list[str] = []
    for function in found:
        kind = len(prompts) % (len(TASKS) + 1)
        if kind == len(TASKS):
            prompts.append(function.source[: len(function.source) // 2])
        elif chat := TASKS[kind](function, random):
            prompts.append(chat[: chat.index(ANSWER) + len(ANSWER)])
    return prompts[:num]


def open_drafts(target: Path, draft: Path, length: int) -> Scheduler:
    """A scheduler that drafts so many tokens with this model alone."""
    config = Config(
        engine=EngineConfig(context=1024, threads=1, gpu_layers=0),
        scheduler=SchedulerConfig(parallel=1, max_queue=10_000),
        speculation=SpeculationConfig(
            spec="fixed", spec_type=speculator_for(draft), draft_max=length, spec_state="none"
        ),
    )
    return build_scheduler(config, Models(target, draft, is_demo=False))[0]


def print_row(
    options: argparse.Namespace, draft: Path, length: int, prompts: Sequence[str]
) -> None:
    """Print a line per temperature."""
    scheduler = open_drafts(options.model, draft, length)
    calls, vocab = TimedCalls(scheduler), Model(options.model, EngineConfig(gpu_layers=0)).vocab
    for temperature in (0.0, 1.0):
        stats = calls.guarded.stats
        drafted, accepted, calls.seconds = stats.num_drafted, stats.num_accepted, 0.0
        requests = [
            Request(
                request_id=f"{index}",
                prompt=tuple(vocab.tokenize(prompt, add_special=True, parse_special=True)),
                sampling=SamplingParams(
                    temperature=temperature, seed=index, top_k=0, top_p=1.0, min_p=0.0
                ),
                max_tokens=options.tokens,
                cache_prompt=False,
            )
            for index, prompt in enumerate(prompts)
        ]
        num_tokens = sum(len(one.tokens) for one in generate(scheduler, requests).values())
        drafted, accepted = stats.num_drafted - drafted, stats.num_accepted - accepted
        per_step = num_tokens / (num_tokens - accepted)
        print(
            f"| {draft.stem} | {length} | {temperature:g} | {per_step:.2f} "
            f"| {accepted / drafted:.2f} | {1e3 * calls.seconds / drafted:.2f} |",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, default=demo.path(demo.TARGET))
    parser.add_argument("-md", "--draft", type=Path, action="append", required=True)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4, 8])
    options = parser.parse_args()
    prompts = make_prompts(options.prompts)
    print("| draft model | length | temp | acceptance length | accepted | ms a draft token |")
    print("|---|---|---|---|---|---|")
    for draft in options.draft:
        for length in options.lengths:
            print_row(options, draft, length, prompts)


if __name__ == "__main__":
    main()
