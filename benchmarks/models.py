"""What works on which architecture: generated tiny models, served as real ones are.

    python -m benchmarks.models
        every architecture; writes the table in docs/models.md
    python -m benchmarks.models --only gemma3 qwen35
        some of them; prints the table
    python -m benchmarks.models --texts FOLDER --verify "--exact --tokens 400 -np 8 -c 1024 -t 1"
        `headstart verify` of `lib/quantized.py`'s models in four quantizations (`--only` some);
        prints how many texts differ. Models and reports stay in the folder, and a report that is
        there already is not made again
    python -m benchmarks.models --texts FOLDER --server llama-server
        llama-server's texts instead, beside others and with `ngram-simple`

For each: it loads and answers; every speculator at 1 and at 4 slots leaves the text as it is; a
conversation that goes on and one whose answers are shortened reads little again and answers as if
it had read all; the context's end is met; memory is what was estimated; as draft model of a llama
model with its vocabulary or another one it leaves the text as it is. Attention runs in
`--exact` and must be equal token by token. So does a recurrent model with one slot, where its
state can take back a padding row; several slots need weights that are not F32, as these are, so its
texts may differ where rounding decides between two tokens.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from benchmarks.lib.quantized import MODELS, texts_table, verify
from benchmarks.lib.server_texts import print_texts
from tests.architectures import ARCHITECTURES, write_model
from tests.harness import Answer, play
from tests.models import MERGES, OTHER_MERGES, SMALLER, tiny_llama
from tests.real.answers import Setting, different, open_setting

from headstart.app.assemble import Models
from headstart.config import EngineConfig
from headstart.engine.footprint import HOST, can_measure, measure, uses_of
from headstart.engine.parameters import Limits
from headstart.extras.bench.report import table_head
from headstart.scheduler.scheduler import Scheduler
from headstart.types import CacheKind
from headstart.types.errors import ConfigError, ModelError
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- made by benchmarks/models.py -->\n", "<!-- end -->"
SPECULATORS = (
    "draft-model",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "suffix",
    "auto",
)
LENGTH = 4  # draft tokens a step
CONTEXT = 512
SECONDS = 300.0  # for one architecture
ONE_SLOT = "with --parallel 1 only"
KINDS = {
    CacheKind.CUT: "attention",
    CacheKind.WINDOW: "attention with sliding windows",
    CacheKind.ROLLBACK: "recurrent layers, with snapshots",
    CacheKind.CHECKPOINT: "recurrent layers, without snapshots",
}


@dataclass(slots=True)
class Row:
    """What was found out of one architecture."""

    architecture: str
    memory: str = ""
    equal: int = 0  # settings in which all texts were as without speculation
    settings: int = 0
    unequal: dict[str, int] = field(default_factory=dict)  # texts that differed, by setting
    drafted: int = 0
    unusable: str = ""  # why nothing is drafted
    read_next: int = 0  # prompt tokens read of a turn that only adds, beyond the new ones
    read_shortened: int = 0  # of a turn whose last answer lost its first part
    turns_equal: bool = False
    context_end: bool = False
    estimate: float = 0.0  # memory as estimated, by what was taken
    why_no_draft_model: str = ""
    accepted: float = 0.0  # of what it drafts for itself
    failure: str = ""


def inspect(name: str, folder: Path) -> Row:
    """Serve one architecture in all ways."""
    path = write_model(folder / f"{name}.gguf", name)
    draft = tiny_llama(folder / "draft.gguf", shape=SMALLER)
    pair, row = Models(path, draft), Row(name)
    models = replace(pair, draft=None)
    row.why_no_draft_model = _why_no_draft_model(name, folder)
    plain = Setting(context=CONTEXT)
    try:
        open_setting(replace(plain, num_slots=4), models)
    except ConfigError:
        plain = replace(plain, exact=False)
    scheduler = open_setting(plain, models)
    try:
        open_setting(replace(plain, num_slots=2), models)
    except ConfigError as error:
        row.failure = f"served with --parallel 1 only: {error}"
        return row
    _draft_for_itself(row, plain, path)
    _compare_speculators(row, scheduler, plain, pair)
    _talk(row, plain, models)
    _reach_the_end(row, plain, models)
    _weigh(row, path)
    return row


def _why_no_draft_model(name: str, folder: Path) -> str:
    """Why it cannot draft for a llama model of its vocabulary and of another; empty if it can."""
    target = Models(tiny_llama(folder / "target.gguf"))
    requests = _requests(8)
    expected = play(open_setting(Setting(context=CONTEXT), target), requests)
    for slots in (1, 4):
        for merges in (MERGES, OTHER_MERGES):
            draft = write_model(folder / "as-draft.gguf", name, merges=merges)
            setting = Setting("draft-model", LENGTH, slots, CONTEXT)
            try:
                scheduler = open_setting(setting, replace(target, draft=draft))
            except (ConfigError, ModelError) as error:
                return ONE_SLOT if slots > 1 else f"no: {error}"
            results = play(scheduler, requests)
            (speculator,) = scheduler.drafting.speculators.values()
            if different(expected, results) or speculator.failure:
                return f"no: {speculator.failure or 'texts differ'}"
            if not scheduler.outcomes.total.drafts.num_drafted:
                return "no: it drafts nothing"
    return ""


def _draft_for_itself(row: Row, plain: Setting, path: Path) -> None:
    """A draft model that loses track of the text would guess other tokens than the target's."""
    setting = replace(plain, types="draft-model", length=LENGTH, num_slots=4)
    try:
        scheduler = open_setting(setting, Models(path, path))
    except (ConfigError, ModelError):
        return
    play(scheduler, _requests(8))
    stats = scheduler.outcomes.total.drafts
    row.accepted = stats.num_accepted / max(1, stats.num_drafted)


def _compare_speculators(row: Row, scheduler: Scheduler, plain: Setting, models: Models) -> None:
    requests = _requests(8)
    expected = play(scheduler, requests)
    for types in SPECULATORS:
        for slots in (1, 4):
            setting = replace(plain, types=types, length=LENGTH, num_slots=slots)
            has_draft = types in ("draft-model", "auto")
            scheduler = open_setting(setting, models if has_draft else replace(models, draft=None))
            results = play(scheduler, requests)
            row.settings += 1
            if wrong := different(expected, results):
                row.unequal[f"{types}, {slots} slots"] = len(wrong)
            else:
                row.equal += 1
            row.drafted += scheduler.outcomes.total.drafts.num_drafted
            row.memory = scheduler.engine.cache_kind.value
            row.unusable = scheduler.drafting.describe()["unusable"]


def _talk(row: Row, plain: Setting, models: Models) -> None:
    """Two conversations of four turns, of which one leaves out the first half of each answer."""
    fresh = open_setting(plain, models)
    row.turns_equal = True
    for shortens in (False, True):
        scheduler = open_setting(replace(plain, num_slots=2), models)
        history, most, num_new = _words(1, 60), 0, 0
        for turn in range(4):
            request = _request(f"turn{turn}", history, max_tokens=40)
            results = play(scheduler, [request])
            alone = play(fresh, [replace(request, cache_prompt=False)])
            row.turns_equal &= not different(alone, results)
            answer = list(results[request.request_id].tokens)
            new = _words(10 + turn, 12)
            if turn:
                most = max(most, _num_read(results[request.request_id]) - num_new)
            kept = answer[20:] if shortens else answer
            num_new = len(new) + (len(kept) if shortens else 1)  # the last token is never cached
            history = [*history, *kept, *new]
        if shortens:
            row.read_shortened = most
        else:
            row.read_next = most


def _reach_the_end(row: Row, plain: Setting, models: Models) -> None:
    scheduler = open_setting(replace(plain, types="suffix", length=LENGTH, num_slots=2), models)
    requests = [replace(r, max_tokens=None) for r in _requests(2)]
    results = play(scheduler, requests)
    row.context_end = all(
        r.end is not None and r.end.truncated and len(r.tokens) > CONTEXT // 4
        for r in results.values()
    )


def _weigh(row: Row, path: Path) -> None:
    from headstart.engine.context import LlamaEngine
    from headstart.engine.model import Model

    config, limits = EngineConfig(context=4096, gpu_layers=0, threads=1), Limits(4, 68, 16)
    if not can_measure():
        return
    _, uses = measure(path, config, limits, 4096)
    engine = LlamaEngine(Model(path, config), config, limits)
    outputs = 4 * engine.max_outputs * engine.vocab_size
    row.estimate = uses[HOST].total / (uses_of(engine.handle)[HOST].total + outputs)


def _num_read(result: Answer) -> int:
    return result.stats.num_prompt - result.stats.num_cached


def _words(seed: int, size: int) -> list[int]:
    """A text in which some parts come again, so that all ways of guessing find something."""
    random = np.random.default_rng(seed)
    part = random.integers(0, 256, 12).tolist()
    return [*part, *random.integers(0, 256, size).tolist(), *part][-size:]


def _request(name: str, prompt: Sequence[int], max_tokens: int = 24, seed: int = 0) -> Request:
    sampling = SamplingParams(temperature=0.0 if seed % 2 == 0 else 0.8, seed=seed, ignore_eos=True)
    return Request(request_id=name, prompt=tuple(prompt), sampling=sampling, max_tokens=max_tokens)


def _requests(num: int) -> list[Request]:
    return [_request(str(i), _words(i // 2, 30 + 5 * i), seed=i) for i in range(num)]


def table(rows: Sequence[Row]) -> str:
    """What was found out; docs/models.md says what the columns are."""
    lines = [
        table_head(
            "architecture", "memory", "texts equal with speculators", "next turn", "shortened turn",
            "context end", "estimate / taken", "as draft model",
        )
    ]  # fmt: skip
    alike: dict[str, list[Row]] = {}  # what was found out, and the architectures of which it holds
    for row in rows:
        alike.setdefault(_found(row), []).append(row)
    lines += [_line(found, same) for found, same in alike.items()]
    if reasons := sorted({row.unusable for row in rows if row.unusable}):
        lines += ["", "Why drafts are off:", "", *(f"- {reason}" for reason in reasons)]
    return "\n".join(lines) + "\n"


def _found(row: Row) -> str:
    """The cells between the names and the use as a draft model."""
    if row.failure:
        return f"{row.failure} | | | | | "
    equal = f"{row.equal} of {row.settings}"
    if row.unequal:
        equal += f" ({sum(row.unequal.values())} texts differ)"
    if row.unusable:
        equal = "drafts are off"
    kind = KINDS[CacheKind(row.memory)]
    turns = "" if row.turns_equal else ", text differs"
    end = "yes" if row.context_end else "no"
    estimate = f"{row.estimate:.3f}" if row.estimate else "not measured"
    shortened = f"+{row.read_shortened}"
    return f"{kind} | {equal} | +{row.read_next}{turns} | {shortened} | {end} | {estimate}"


def _line(found: str, rows: Sequence[Row]) -> str:
    names = ", ".join(f"`{row.architecture}`" for row in rows)
    reasons = sorted({row.why_no_draft_model for row in rows if row.why_no_draft_model})
    least = min((row.accepted for row in rows if not row.why_no_draft_model), default=None)
    drafts = "; ".join(
        ([] if least is None else [f"yes, {least:.2f}" + " or more" * (least < 1)]) + reasons
    )
    return f"| {names} | {found} | {drafts} |"


def main() -> int:
    """Inspect what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--verify", default="--exact --tokens 400 -np 8 -c 1024 -t 1")
    parser.add_argument("--quantize", default="llama-quantize", help="of llama.cpp")
    parser.add_argument("--server", help="llama-server, whose texts are counted")
    arguments = parser.parse_args()
    if arguments.texts:
        names = arguments.only or list(MODELS)
        if arguments.server:
            print_texts(arguments.texts, names, arguments.server, arguments.quantize)
            return 0
        reports = verify(arguments.texts, names, arguments.verify, arguments.quantize)
        print(texts_table(reports))
        return int(any(report["different"] for report in reports.values()))
    if arguments.one:
        logging.disable(logging.WARNING)
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asdict(inspect(arguments.one, Path(folder)))))
        return 0
    rows = [_in_a_process(name) for name in arguments.only or ARCHITECTURES]
    found = table(rows)
    if arguments.only:
        print(found)
    else:
        before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(before + begin + found + END + rest.partition(END)[2], "utf-8")
    is_good = all(
        not row.failure and row.turns_equal and row.context_end and not row.unequal for row in rows
    )
    return 0 if is_good else 1


def _in_a_process(name: str) -> Row:
    """A process each: libllama may abort."""
    command = [sys.executable, "-m", "benchmarks.models", "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Row(name, failure=f"no end after {SECONDS:.0f} s")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return Row(name, failure="fails: " + last[0])
    row = Row(**json.loads(done.stdout.splitlines()[-1]))
    print(row, file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
