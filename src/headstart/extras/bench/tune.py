"""`headstart tune`: measures this machine before the first user comes.

The profile is the file of `--spec-state`: costs of steps and acceptance of drafts.
So tune runs a server for a minute without users and reports what control learned.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.config import option
from headstart.extras.bench.arms import SETTINGS, open_arms, open_server, workplace
from headstart.extras.bench.command import BenchOptions, measure, read_cells, warm
from headstart.extras.bench.comparison import OFF, Scores
from headstart.extras.bench.library import read_questions
from headstart.extras.bench.report import MeanRatio, table_head, table_row
from headstart.extras.bench.steps import break_even
from headstart.extras.distill.prices import StepPrices
from headstart.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Extent of the measurement."""

    prompts: str | None = option(
        None, "file with a prompt a line, or a request body as JSON, like those of your users"
    )
    tokens: int = option(128, "most tokens of an answer", least=1)
    quick: bool = option(False, "fewer answers: rougher numbers in a quarter of the time")
    json: bool = option(False, "print everything as JSON")


def run(resolved: Resolved) -> int:
    """Measure, print, and leave the profile; return the exit code."""
    options, config = resolved.own(TuneOptions), resolved.config()
    if config.speculation.spec_state == "none":
        raise ConfigError("--spec-state none keeps no profile; leave it out, or name a file")
    bench = BenchOptions(
        users=f"1,{config.scheduler.parallel}"
        if resolved.origins["parallel"] != "default"
        else "1",
        workloads="edit,chat,continue",
        temperatures="0.8",
        prompts=options.prompts,
        tokens=options.tokens,
        error=0.02,
        seconds=10.0 if options.quick else 50.0,  # of answers, after decodes were timed
    )
    cells = read_cells(bench, config.scheduler.parallel, "flag")
    questions = None if options.prompts is None else read_questions(Path(options.prompts))
    with workplace() as (folder, stack):
        print("timing decodes of all widths ...", file=sys.stderr, flush=True)
        slots = config.scheduler.parallel
        server = open_server(resolved, slots, folder, stack, keeps_state=True)
        speculation = (server.get("/props") or {}).get("speculation", {})
        drafters = tuple(speculation.get("types", ()))
        alone = {f"auto:{name}": {"speculative": {"types": [name]}} for name in drafters}
        arms = open_arms(server, alone if len(drafters) > 1 else {})
        warm(arms)
        print("answering prompts in every way ...", file=sys.stderr, flush=True)
        scores = measure(arms, cells, questions, bench)
        found = facts(scores, server.control(), drafters) | {
            "profile": speculation.get("state", "")
        }
    print(json.dumps(found) if options.json else "\n".join(report(found)))
    return 0


def facts(scores: Scores, control: Mapping[str, Any], drafters: Sequence[str]) -> dict[str, Any]:
    """The results, JSON-ready; "relative" is each arm's speed in multiples of off."""
    cells, arms = list(scores.values()), dict[str, Any]()
    for name in [name for name in cells[0] if name != OFF]:
        ratio = MeanRatio.of_means([by_arm[name].relative_to(by_arm[OFF]) for by_arm in cells])
        arms[name] = {
            "relative": ratio._asdict(),
            "draft_n": sum(by_arm[name].num_drafted for by_arm in cells),
            "draft_n_accepted": sum(by_arm[name].num_accepted for by_arm in cells),
        }
    pays = {name: pays_from(control, name) for name in drafters}
    return {"control": control, "arms": arms, "pays_from": pays}


def pays_from(control: Mapping[str, Any], drafter: str) -> tuple[float, int] | None:
    """The least acceptance rate of a token at which drafts pay, and their length then; None if no
    draft of up to 16 tokens ever does.
    """
    if "1" not in control["cost_ms"].get("rows", ()):
        return None
    prices = StepPrices.of(control["cost_ms"])
    plain, round_ms = prices.step(0, 0, 0), _round_ms(control, drafter)
    rates = {n: break_even(n, (prices.step(n, 0, 0) + n * round_ms) / plain) for n in range(1, 17)}
    return min(((rate, n) for n, rate in rates.items() if rate is not None), default=None)


def _round_ms(control: Mapping[str, Any], drafter: str) -> float:
    """Milliseconds of a draft token for one slot; 0 for what copies texts."""
    rounds = control["draft_models"].get(drafter, {}).get("round_ms", {})
    return float(min(rounds.items(), key=lambda one: int(one[0]))[1]) if rounds else 0.0


def report(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines to print of `facts`."""
    yield table_head("drafts by", "speed in multiples of the baseline", "", "accepted of drafted")
    for name, arm in found["arms"].items():
        ratio = MeanRatio(**arm["relative"])
        counts = f"{arm['draft_n_accepted']}/{arm['draft_n']}"
        yield table_row(name.removeprefix("auto:"), ratio, ratio.verdict, counts)
    yield ""
    for name, pays in found["pays_from"].items():
        yield f"{name}: {_advice(found['control'], name, pays)}"
    yield ""
    yield f"profile: {found['profile']}; headstart serve with the same flags begins with it"


def _advice(control: Mapping[str, Any], drafter: str, pays: tuple[float, int] | None) -> str:
    step_ms = float(control["cost_ms"].get("rows", {}).get("1", 0.0))
    cost = f"a draft token takes {_round_ms(control, drafter):.2f} ms, a step {step_ms:.2f} ms"
    if pays is None:
        return f"can never pay here: {cost}"
    rate, length = pays
    seen = control["acceptance"].get(drafter, {"labels": 0.0})
    here = f"; {seen['acceptance']:.0%} were on these prompts" if seen["labels"] > 0 else ""
    return f"pays where {rate:.0%} of its tokens are accepted ({length} a draft){here}; {cost}"


COMMAND = Command(
    name="tune",
    about=(
        "Measure this machine for a minute: starts a server with these flags, times decodes of all "
        "widths, answers prompts with every speculator there is, says what each gives and from "
        "which acceptance it pays, and leaves what was learned in the file (--spec-state) that "
        "headstart serve with the same flags reads, so that its first answers are as fast as later "
        "ones."
    ),
    options=TuneOptions,
    takes=SETTINGS,
    run=run,
)
