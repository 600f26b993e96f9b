"""`headstart verify`: is the text the same with speculation and without, on this machine?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.app.cli.command import Command
from headstart.app.cli.devices import ENGINE_PARTS
from headstart.app.cli.resolve import Resolved
from headstart.app.speculation import without_file
from headstart.config import Config, option
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

if TYPE_CHECKING:
    from headstart.app.verify import Difference, TextComparison, Way
    from headstart.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Extent of the comparison."""

    prompts_limit: int = option(
        6,
        "prompts to answer in each way; each gives about 90 texts, so 6 take minutes, and with a "
        "large model an hour or more",
        least=1,
    )
    tokens: int = option(48, "tokens of each answer", least=1)
    json: bool = option(False, "print JSON, for programs")


def run(resolved: Resolved) -> int:
    """Compare, print the table and the verdict; 1 if a text is different."""
    options, config = resolved.own(VerifyOptions), resolved.config()

    from headstart.app.assemble import build_scheduler, check, find_models
    from headstart.app.verify import TEMPERATURES, verify

    config = _settings(config)
    check(config)
    models = find_models(config)

    def open_scheduler(num_slots: int) -> Scheduler:
        num = len(TEMPERATURES) * options.prompts_limit
        limits = replace(config.scheduler, parallel=num_slots, cache_disk=0, max_queue=num)
        return build_scheduler(replace(config, scheduler=limits), models)[0]

    def tell(way: Way, num: int, found: list[Difference]) -> None:
        if not options.json:
            kinds = [
                f"{one.kind} at {one.temperature} ({one.error or _shown(one.margin)})"
                for one in found
            ]
            same = f"{num - len(found)} of {num} the same"
            print(f"{way!s:<44} {same}", *kinds, sep="  ", flush=True)

    requests = make_requests(options, models.target)
    slots = tuple(dict.fromkeys((1, config.scheduler.parallel)))
    verdict = verify(open_scheduler, requests, slots, is_exact=config.engine.exact, tell=tell)
    print(json.dumps(verdict.describe(), indent=2) if options.json else _summary(verdict))
    return int(verdict.num_different > 0)


def _settings(config: Config) -> Config:
    """Settings with every speculator, without saved state and without a warm-up."""
    speculation = config.speculation
    types = speculation.spec_type
    named = config.model
    if types is None and named.draft_model is None and named.draft_hf_repo is None:
        is_demo = named.model is None and named.hf_repo is None  # the demo has a draft model
        types = without_file() + ",draft-model" * is_demo
    options = dict(speculation.options)
    if types is not None and "ngram-simple" in types:  # 12 as a rule: too long for texts so short
        options = {"ngram-simple": {"size_n": 3}} | options
    speculation = replace(speculation, spec_type=types, spec_state="none", options=options)
    return replace(config, speculation=speculation)


def make_requests(options: VerifyOptions, target: Path) -> list[Request]:
    """Prompts cut from this package's source, with sampling parameters in turn."""
    from headstart.engine.model import Model

    vocab = Model(target).vocab
    files = sorted(Path(__file__).parents[2].rglob("*.py"))
    variations: Sequence[dict[str, Any]] = (
        {},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"repeat_penalty": 1.1, "presence_penalty": 0.2},
    )
    requests = []
    for index in range(options.prompts_limit):
        lines = files[index * 7 % len(files)].read_text(encoding="utf-8").splitlines()
        code = "\n".join(lines[:14])[:400]
        text = f"{code}\n\n# again:\n{code[:40]}"
        prompt = vocab.tokenize(text, add_special=True, parse_special=False)
        ignores = index % 4 < 3  # so that most texts do not end early
        sampling = SamplingParams(
            seed=index, ignore_eos=ignores, **variations[index % len(variations)]
        )
        requests.append(
            Request(
                request_id=str(index),
                prompt=tuple(prompt),
                sampling=sampling,
                max_tokens=options.tokens,
            )
        )
    return requests


def _shown(margin: float | None) -> str:
    return "no change of its logit gives it" if margin is None else f"margin {margin:.2g}"


def _summary(verdict: TextComparison) -> str:
    classes = verdict.classes
    times = dict(classes.milliseconds)
    shown = [f"{n}: {times[n]:.1f}" for n in (1, 2, 4, 8, 16, 63) if n in times]
    lines = [
        "",
        classes.promise(verdict.cache_kind),
        f"rows of a decode that agree: {classes}; other widths change a logit by up to "
        f"{classes.change:.2g}, other ways to read a text by up to {verdict.change:.2g}",
        f"milliseconds of a decode by rows: {', '.join(shown)}",
        f"draft tokens: {verdict.num_drafted} verified, {verdict.num_accepted} accepted; prompts "
        f"restored: {verdict.num_restored}; tokens compared: {verdict.num_tokens}",
        str(verdict),
    ]
    if verdict.num_different:
        lines.append("DIFFERENT: this is a fault; please report it with the lines above")
    elif verdict.num_near_ties:
        lines.append("same but for near ties; --exact rules them out")
    else:
        lines.append("SAME" + ", with --exact" * verdict.is_exact)
    return "\n".join(lines)


COMMAND = Command(
    name="verify",
    about=(
        "Answer the same prompts without speculation and in every other way: each speculator, "
        "auto, one slot and several, temperatures 0, 0.8 and 1.5, with prompts that are fresh, "
        "cached, or arrive while others are answered. Each text that differs is explained: a near "
        "tie, which kernels decide by the number of rows, or different, which is a fault. Exit "
        "code 1 if any text is different. Without -m on the embedded model."
    ),
    options=VerifyOptions,
    takes=ENGINE_PARTS,
    run=run,
)
