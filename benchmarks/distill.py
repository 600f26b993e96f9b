"""`headstart distill` on the demo models: a code base with names and idioms of its own.

    python -m benchmarks.distill texts --work DIR
        the demo target answers questions about it, recorded as a server records them
    python -m benchmarks.distill measure --work DIR
        acceptance of the demo draft model and of copies, at the price of 1b-q8 and draft-0.06b-q8
    python -m benchmarks.distill train --work DIR --tokens 100000 --seconds 600
        tune the demo draft on the earlier conversations, and prove it on the later ones

`--plain` takes the standard library as it is: the models were trained on it. `--control` spoils the
earlier texts: `shuffled` gives each prompt another one's answer, `tenant` takes the plain texts,
`duplicates` takes the later conversations themselves, which are left out as what they are.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.replay import CURVE, DRAFT_CURVE

from headstart.app.assemble import Models, build_scheduler
from headstart.app.demo import DRAFT, TARGET, path
from headstart.config import (
    Config,
    EngineConfig,
    RecordingConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from headstart.control.state import ModelId
from headstart.extras.bench.library import WORKLOADS, Function, Library, Question, read_library
from headstart.extras.distill.candidates import Candidates
from headstart.extras.distill.measure import Findings
from headstart.extras.distill.prices import StepPrices
from headstart.extras.distill.proof import prove
from headstart.extras.distill.recorder import TextRecorder
from headstart.extras.distill.texts import RecordedText, read_texts, split, without_duplicates
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
    scheduler, _ = build_scheduler(config, Models(path(TARGET), path(DRAFT), is_demo=False))
    recorder = TextRecorder(RecordingConfig(record_texts=str(folder)), path(TARGET))
    scheduler.readers.append(recorder)
    started = time.monotonic()
    for number, question in enumerate(questions(library, count, seed)):
        asked = str(question.turns[0])
        chat = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        text = asked if question.is_raw else chat
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


def prices() -> StepPrices:
    """Of 1b-q8 on two cores; the draft model's are those of draft-0.06b-q8."""
    rows = {int(n): float(ms) for n, ms in (point.split(":") for point in CURVE.split(","))}
    return StepPrices.of(rows)


def compare(
    later: Sequence[RecordedText], earlier: Sequence[RecordedText], drafts: Sequence[Path]
) -> Findings:
    """Copies, and draft models at the price of draft-0.06b-q8."""
    made = Candidates.of(Config(engine=EngineConfig(threads=1)), path(TARGET))
    found = Findings.of(later, made.suffix(later, earlier), prices())
    for draft in drafts:
        model, _ = made.draft_model(draft, later)
        found = found.with_model(draft.stem, model, float(DRAFT_CURVE.split(",")[0][2:]))
    return found


def texts_of(work: Path, *, plain: bool) -> list[RecordedText]:
    """What `texts` recorded."""
    return read_texts(work / ("plain" if plain else "shifted"), ModelId.of(path(TARGET)).digest)


def spoil(
    control: str, work: Path, earlier: Sequence[RecordedText], later: Sequence[RecordedText]
) -> list[RecordedText]:
    """The earlier texts as a negative control has them."""
    if control == "shuffled":
        answers = [text.answer for text in earlier]
        Random(0).shuffle(answers)
        return [replace(t, answer=a) for t, a in zip(earlier, answers, strict=True)]
    if control == "tenant":
        return split(texts_of(work, plain=True))[0]
    return list(later) if control == "duplicates" else list(earlier)


def train(args: argparse.Namespace) -> None:
    """Tune the demo draft and prove it."""
    from gguf import GGUFReader

    from headstart.extras.distill import teacher
    from headstart.extras.distill.gguf_file import read_model, write_model
    from headstart.extras.distill.train import CONTEXT, Trainer, TrainingPlan

    earlier, later = split(texts_of(args.work, plain=args.plain))
    texts = without_duplicates(spoil(args.control, args.work, earlier, later), later)
    num_tokens, chosen = 0, []
    for text in Random(args.seed).sample(texts, len(texts)):
        if num_tokens < args.tokens:
            chosen.append(text)
            num_tokens += len(text.answer)
    chosen.sort(key=lambda text: text.recorded)
    name = f"draft-{args.control or 'own'}-{args.loss}-{args.tokens}{'-plain' * args.plain}"
    print(f"{name}: {num_tokens} tokens of {len(chosen)} answers", flush=True)
    rows = teacher.TeacherRows()
    if args.loss != "ce" and chosen and args.control != "shuffled":
        config = Config(engine=EngineConfig(threads=1))
        rows = teacher.compute(config, path(TARGET), chosen, args.work / f"{name}.npz")
    output = args.work / f"{name}.gguf"
    if chosen:
        plan = TrainingPlan(loss=args.loss, seconds=args.seconds)
        reader = GGUFReader(path(DRAFT))
        model = read_model(reader, CONTEXT)
        trained = Trainer(model, chosen, rows, plan, args.work / f"{name}.pt").run()
        print(trained.describe(), flush=True)
        write_model(reader, trained.weights, output, "Q8_0", trained.describe())
    else:
        output.write_bytes(path(DRAFT).read_bytes())
    found = compare(later, earlier, [path(DRAFT), output])
    verdict = prove(found, path(DRAFT).stem, output.stem)
    print("\n".join([*found.report(), *verdict.report()]), flush=True)
    args.work.joinpath(f"{name}.json").write_text(
        json.dumps({"found": found.describe(), "verdict": verdict.describe()})
    )


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("texts", "measure", "train"))
    parser.add_argument("--work", type=Path, required=True, help="folder for texts and models")
    parser.add_argument("--plain", action="store_true", help="the library as it is")
    parser.add_argument("--count", type=int, default=1200, help="answers to record")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=100_000, help="of answers to learn from")
    parser.add_argument("--seconds", type=float, default=600.0, help="of training")
    parser.add_argument("--loss", choices=("ce", "kl", "tv"), default="kl")
    parser.add_argument("--control", choices=("", "shuffled", "tenant", "duplicates"), default="")
    args = parser.parse_args()
    if args.part == "texts":
        folder = args.work / ("plain" if args.plain else "shifted")
        write_texts(folder, read_library() if args.plain else project(), args.count, args.seed)
    elif args.part == "measure":
        earlier, later = split(texts_of(args.work, plain=args.plain))
        found = compare(later, earlier, [path(DRAFT)])
        print("\n".join(found.report()))
    else:
        train(args)


if __name__ == "__main__":
    main()
