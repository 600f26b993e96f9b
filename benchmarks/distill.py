"""What `headstart distill` gives, by how much it learns from, by loss, and where it must not pay.

    python -m benchmarks.distill record --texts DIR
        the demo target answers questions about a code base with names and idioms of its own,
        recorded as a server records them; with --plain about the standard library as it is, which
        the models were trained on
    python -m benchmarks.distill learn --texts DIR --cells 10000:kl,100000:kl,100000:kl:shuffled
        tunes the demo draft model on the latest so many tokens of the earlier answers, with a loss,
        and proves it on the later ones; there the steps cost what --curve and --round say

What must not be promoted is learned with a third word: `shuffled` answers behind prompts of others,
texts of `another` (--others DIR), and `duplicates` of the tests, which are left out of what is
learned from.
"""

from __future__ import annotations

import argparse
import ast
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
from benchmarks.lib.curves import CostCurve
from benchmarks.lib.workloads import text_of
from gguf import GGUFReader

from headstart.app.assemble import Models, build_scheduler
from headstart.app.demo import DRAFT, TARGET, path
from headstart.config import (
    Config,
    EngineConfig,
    RecordingConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from headstart.extras.bench.library import WORKLOADS, Function, Library, Question, read_library
from headstart.extras.bench.report import table_head, table_row
from headstart.extras.distill.candidates import Candidates
from headstart.extras.distill.measure import Findings
from headstart.extras.distill.prices import StepPrices
from headstart.extras.distill.proof import prove
from headstart.extras.distill.recorder import TextRecorder
from headstart.extras.distill.texts import (
    RecordedText,
    read_texts,
    split,
    training_folder,
    without_duplicates,
)
from headstart.structures.model_id import ModelId
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

MIX = ("edit", "json", "chat", "continue", "continue")  # half of the answers' tokens is free code
MOST_TOKENS = 192
USERS = 8
# the project's words for what everybody else calls otherwise
WORDS = {
    "name": "moniker", "value": "quant", "key": "latch", "data": "cargo", "path": "trail",
    "file": "scroll", "line": "strand", "result": "yield_", "index": "notch", "size": "girth",
    "text": "prose", "item": "parcel", "items": "parcels", "list": "roster", "node": "knot",
    "args": "freight", "kwargs": "manifest", "msg": "missive", "message": "missive",
    "type": "genus", "obj": "thing", "func": "deed", "mode": "gait", "code": "cipher",
    "start": "dawn", "end": "dusk", "count": "tally_", "buffer": "vat", "source": "spring",
    "error": "mishap", "string": "ribbon", "state": "mood", "other": "rival", "default": "custom",
}  # fmt: skip
PREFIX = "qx_"  # of its functions
# of 1 B Q8_0 on two cores, as in docs/measured.md
CURVE = "1:34,2:64,3:71,4:77,5:105,6:110,8:112,9:140,12:150,16:185"
HEAD = (
    *("tokens", "loss", "texts", "steps", "s", "accepted before, after", "tokens a step, more"),
    *("tokens/s, of the best without", "that is", "tokens a step", "verdict"),
)


def in_house(source: str) -> str:
    """Code as this project would write it."""
    source = re.sub(r"\bdef (?!__)(\w+)", rf"def {PREFIX}\1", source)
    source = re.sub(r"\bself\.(?!__)(\w+)\(", rf"self.{PREFIX}\1(", source)
    source = re.sub(r"\b[a-z]+\b", lambda word: WORDS.get(word[0], word[0]), source)
    return re.sub(r"\braise (\w+)\(", r"raise qx.bail(\1, ", source)


def project() -> Library:
    """The standard library, rewritten; functions that no longer parse are left out."""
    plain, functions = read_library(), []
    for function in plain.functions:
        source = in_house(function.source)
        try:
            (node,) = ast.parse(source).body
        except SyntaxError:
            continue
        if isinstance(node, ast.FunctionDef):
            functions.append(Function(source, node))
    return Library(functions, [in_house("\n".join(file)).split("\n") for file in plain.files])


def questions(library: Library, count: int, seed: int) -> Iterator[Question]:
    """Of the mix."""
    random, num = Random(f"distill-{seed}"), 0
    while num < count:
        if (question := WORKLOADS[random.choice(MIX)](library, random)) is not None:
            num += 1
            yield question


def write_texts(folder: Path, library: Library, count: int, seed: int) -> None:
    """Let the demo target answer, half at temperature 0 and half at 0.8; texts are recorded."""
    config = Config(
        engine=EngineConfig(context=1536 * USERS, threads=1),
        scheduler=SchedulerConfig(parallel=USERS),
        speculation=SpeculationConfig(spec="auto", spec_state="none"),
    )
    scheduler, _ = build_scheduler(config, Models(path(TARGET), path(DRAFT)))
    recorder = TextRecorder(RecordingConfig(record_texts=str(folder)), path(TARGET))
    scheduler.readers.append(recorder.read)
    started = time.monotonic()
    for number, question in enumerate(questions(library, count, seed)):
        text = text_of(question)
        prompt = scheduler.vocab.tokenize(text, add_special=False, parse_special=True)[-1024:]
        sampling = SamplingParams(temperature=number % 2 * 0.8, seed=number)
        limit = min(question.max_tokens, MOST_TOKENS)
        scheduler.submit(
            Request(request_id=f"{number}", prompt=prompt, sampling=sampling, max_tokens=limit)
        )
        while len(scheduler.running) + len(scheduler.waiting) >= USERS or (
            number == count - 1 and scheduler.has_work
        ):
            scheduler.step()
            scheduler.take_events()
    recorder.close()
    print(f"{count} answers in {time.monotonic() - started:.0f} s", flush=True)


def latest(texts: Sequence[RecordedText], num_tokens: int) -> list[RecordedText]:
    """The last texts, with so many tokens of answers or a few more."""
    before = np.cumsum([0, *(len(text.answer) for text in reversed(texts))])
    return list(texts[-int(np.searchsorted(before, num_tokens)) :])


def learn(args: argparse.Namespace) -> None:
    """Tune with each cell's tokens and loss; print a row of the table for each."""
    from headstart.extras.distill.gguf_file import write_model
    from headstart.extras.distill.train import tune

    model = ModelId.of(path(TARGET)).digest
    earlier, later = split(read_texts(args.texts, model))
    later, config = latest(later, args.tests), Config(engine=EngineConfig(threads=1))
    others = split(read_texts(args.others, model))[0] if args.others else []
    folder = training_folder(args.texts)
    candidates, rows = Candidates(config, path(TARGET)), dict(CostCurve.parse(args.curve).points)
    base, _ = candidates.draft_model(path(DRAFT), later)
    models, file = Models(path(TARGET), path(DRAFT)), args.texts / "tuned.gguf"
    print(table_head(*HEAD))
    for cell in args.cells.split(","):
        size, loss, *control = cell.split(":")
        part = latest(earlier, int(size))
        learned = part
        if control == ["shuffled"]:
            order = np.random.default_rng(0).permutation(len(part))
            learned = [
                replace(one, answer=part[i].answer) for one, i in zip(part, order, strict=True)
            ]
        elif control == ["another"]:
            learned = latest(others, sum(len(one.answer) for one in part))
        elif control == ["duplicates"]:
            learned = later
        texts = without_duplicates(learned, later)
        if not texts:
            print(table_row(size, loss, *control, "nothing is left to learn from"))
            continue
        trained = tune(config, models, texts, folder, [loss], args.seconds)[loss]
        write_model(GGUFReader(path(DRAFT)), trained.weights, "Q8_0", file, {})
        found = Findings.of(later, candidates.suffix(later, part), StepPrices.of(rows))
        tuned, _ = candidates.draft_model(file, later)
        for name, one in (("draft", base), ("tuned", tuned)):
            found = found.with_model(name, one, args.round)
        verdict = prove(found, "draft", "tuned")
        lengths = [f"{arm}: {one.acceptance_length:.3f}" for arm, one in found.arms.items()]
        accepted = f"{trained.accepted_before:.3f}, {trained.accepted_after:.3f}"
        cells = (
            *(size, " ".join((loss, *control)), len(texts), trained.num_steps),
            *(f"{trained.seconds:.0f}", accepted, verdict.gain, verdict.ratio, verdict.best),
            *("; ".join(lengths), verdict.refusal or "promoted"),
        )
        print(table_row(*cells), flush=True)


def main() -> None:
    """Record texts, or learn from them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("record", "learn"))
    parser.add_argument("--texts", type=Path, required=True, help="folder of the texts")
    parser.add_argument("--plain", action="store_true", help="the library as it is")
    parser.add_argument("--count", type=int, default=1200, help="answers to record")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cells", default="10000:kl", help="TOKENS:LOSS[:CONTROL],...")
    parser.add_argument("--seconds", type=float, default=120.0, help="of a training, at most")
    parser.add_argument("--tests", type=int, default=12_000, help="tokens of later answers")
    parser.add_argument("--others", type=Path, help="texts of another tenant")
    parser.add_argument("--curve", default=CURVE, help="milliseconds of a step, by rows")
    parser.add_argument("--round", type=float, default=2.0, help="milliseconds of a draft token")
    args = parser.parse_args()
    if args.step == "record":
        library = read_library() if args.plain else project()
        write_texts(args.texts, library, args.count, args.seed)
    else:
        learn(args)


if __name__ == "__main__":
    main()
