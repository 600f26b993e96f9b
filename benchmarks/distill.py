"""What `headstart distill` gives, by how much it learns from, by loss, and where it must not pay.

    python -m benchmarks.distill shift --target shifted.gguf
        tunes the demo target to write Python functions in the syntax of JavaScript, of which the
        demo draft model has seen nothing
    python -m benchmarks.distill record --target shifted.gguf --texts DIR
        it answers such questions about other functions, recorded as a server records them; with
        --plain those that the demo models were trained on
    python -m benchmarks.distill learn --target shifted.gguf --texts DIR \\
            --cells 10000:kl,100000:kl,100000:kl:shuffled
        tunes the demo draft model on the latest so many tokens of the earlier answers, with a loss,
        and proves it on the later ones; there the steps cost what --curve and --round say

What must not be promoted is learned with a third word: `shuffled` answers behind prompts of others,
texts of `another` (--others DIR), and `duplicates` of the tests, which are left out of what is
learned from.
"""

from __future__ import annotations

import argparse
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
from training.corpus import read_library as read_functions

from headstart.app.assemble import Models, build_scheduler
from headstart.app.demo import DRAFT, TARGET, path
from headstart.config import (
    Config,
    EngineConfig,
    RecordingConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from headstart.engine.model import Model
from headstart.extras.bench.library import WORKLOADS, Question
from headstart.extras.bench.report import table_head, table_row
from headstart.extras.distill.candidates import draft_model, suffix
from headstart.extras.distill.measure import Findings
from headstart.extras.distill.proof import Interval, prove
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
MOST_CHARS = 500  # of a function, which then fits
USERS = 8
NUM_SHIFTED = 1500  # functions that the target learns from; it is asked about others
WORDS = {
    "None": "null", "True": "true", "False": "false", "self": "this", "and": "&&", "or": "||",
    "not": "!", "is": "===", "def": "function", "lambda": "fn", "elif": "else if",
    "raise": "throw", "except": "catch", "del": "delete",
}  # fmt: skip
# of 1 B Q8_0 on two cores, as in docs/measured.md
CURVE = "1:34,2:64,3:71,4:77,5:105,6:110,8:112,9:140,12:150,16:185"
HEAD = (
    *("tokens", "loss", "texts", "steps", "s", "accepted before, after", "tokens a step, more"),
    *("tokens/s, of the best without", "that is", "tokens a step", "verdict"),
)


def ported(source: str) -> str:
    """Python in the syntax of JavaScript, as far as one line tells."""
    lines, blocks = list[str](), list[int]()
    for line in source.split("\n"):
        body = line.lstrip()
        indent = len(line) - len(body)
        while body and blocks and blocks[-1] >= indent:
            lines.append(" " * blocks.pop() + "}")
        body = re.sub(r"\b\w+\b", lambda word: WORDS.get(word[0], camel_case(word[0])), body)
        body = body.replace("#", "//")
        if body.endswith(":"):
            body = body[:-1] + " {"
            blocks.append(indent)
        elif not body.endswith((",", "(", "[", "{", "\\", '"""')) and not body.startswith("//"):
            body += ";" * bool(body)
        lines.append(" " * indent + body)
    return "\n".join([*lines, *(" " * indent + "}" for indent in reversed(blocks))])


def camel_case(name: str) -> str:
    """snake_case as camelCase."""
    return re.sub(r"(?<=[a-z0-9])_([a-z0-9])", lambda match: match[1].upper(), name)


def functions() -> list[str]:
    """Of the standard library, each once, in an order of chance."""
    found = read_functions(MOST_CHARS, Random(0))[1]
    return list(dict.fromkeys(found))


def port_question(source: str) -> Question:
    """Asks for a function in the syntax of JavaScript."""
    return Question((f"Port this function to JavaScript:\n```python\n{source}\n```",), MOST_TOKENS)


def questions(count: int, seed: int, *, is_plain: bool) -> Iterator[Question]:
    """About functions that the target was not tuned on, or the mix that it was trained for."""
    random, num = Random(f"distill-{seed}"), 0
    if not is_plain:
        yield from map(port_question, random.sample(functions()[NUM_SHIFTED:], count))
    while is_plain and num < count:
        if (question := WORKLOADS[random.choice(MIX)](random)) is not None:
            num += 1
            yield question


def shift(args: argparse.Namespace) -> None:
    """Tune the demo target away from its draft model, on recorded tokens that it should say."""
    from headstart.extras.distill.gguf_file import read_model, write_model
    from headstart.extras.distill.train import CONTEXT, Trainer

    reader, vocab = GGUFReader(path(TARGET)), Model(path(TARGET)).vocab

    def tokens(text: str) -> list[int]:
        return list(vocab.tokenize(text, add_special=False, parse_special=True))

    texts = [
        RecordedText(
            recorded=0.0, model="", tenant="", sampling=SamplingParams(temperature=0.0),
            prompt=tokens(text_of(port_question(source))),
            answer=tokens(f"```javascript\n{ported(source)}\n```<|im_end|>"),
        )
        for source in functions()[:NUM_SHIFTED]
    ]  # fmt: skip
    state, model = args.target.with_suffix(".state"), read_model(reader, CONTEXT)
    weights, numbers = Trainer(model, texts, {}, state, args.seconds, "ce").run(print)
    write_model(reader, weights, "Q8_0", args.target, {})
    print(numbers)


def write_texts(folder: Path, target: Path, asked: Sequence[Question]) -> None:
    """Let the target answer, half at temperature 0 and half at 0.8; texts are recorded."""
    config = Config(
        engine=EngineConfig(context=1536 * USERS, threads=1),
        scheduler=SchedulerConfig(parallel=USERS),
        speculation=SpeculationConfig(spec="auto", spec_state="none"),
    )
    scheduler, _ = build_scheduler(config, Models(target, path(DRAFT)))
    recorder = TextRecorder(RecordingConfig(record_texts=str(folder)), target)
    scheduler.readers.append(recorder.read)
    started = time.monotonic()
    for number, question in enumerate(asked):
        text = text_of(question)
        prompt = scheduler.vocab.tokenize(text, add_special=False, parse_special=True)[-1024:]
        sampling = SamplingParams(temperature=number % 2 * 0.8, seed=number)
        limit = min(question.max_tokens, MOST_TOKENS)
        scheduler.submit(
            Request(request_id=f"{number}", prompt=prompt, sampling=sampling, max_tokens=limit)
        )
        while len(scheduler.running) + len(scheduler.waiting) >= USERS or (
            number == len(asked) - 1 and scheduler.has_work
        ):
            scheduler.step()
            scheduler.take_events()
    recorder.close()
    print(f"{len(asked)} answers in {time.monotonic() - started:.0f} s", flush=True)


def latest(texts: Sequence[RecordedText], num_tokens: int) -> list[RecordedText]:
    """The last texts, with so many tokens of answers or a few more."""
    before = np.cumsum([0, *(len(text.answer) for text in reversed(texts))])
    return list(texts[-int(np.searchsorted(before, num_tokens)) :])


def learn(args: argparse.Namespace) -> None:
    """Tune with each cell's tokens and loss; print a row of the table for each."""
    from headstart.extras.distill.gguf_file import write_model
    from headstart.extras.distill.train import tune

    model = ModelId.of(args.target).digest
    earlier, later = split(read_texts(args.texts, model))
    later, config = latest(later, args.tests), Config(engine=EngineConfig(threads=1))
    others = split(read_texts(args.others, model))[0] if args.others else []
    folder = training_folder(args.texts)
    target, cost = Model(args.target), CostCurve.parse(args.curve).table()
    base, _ = draft_model(config, target, path(DRAFT), later)
    models, file = Models(args.target, path(DRAFT)), args.texts / "tuned.gguf"
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
        weights, numbers = tune(config, models, texts, folder, [loss], args.seconds)[loss]
        write_model(GGUFReader(path(DRAFT)), weights, "Q8_0", file, {})
        copies = suffix(config, target, later, part)
        found = Findings.of(later, copies, cost)
        tuned, _ = draft_model(config, target, file, later)
        for name, one in (("draft", base), ("tuned", tuned)):
            found = found.with_model(name, one, args.round)
        verdict = prove(found, "draft", "tuned")
        lengths = [f"{arm}: {one.acceptance_length:.3f}" for arm, one in found.arms.items()]
        accepted = f"{numbers['accepted_before']:.3f}, {numbers['accepted_after']:.3f}"
        intervals = [Interval(**verdict.facts[name]) for name in ("gain", "ratio")]
        cells = (
            *(size, " ".join((loss, *control)), len(texts), numbers["steps"]),
            *(f"{numbers['seconds']:.0f}", accepted, *intervals, verdict.facts["best"]),
            *("; ".join(lengths), verdict.refusal or "promoted"),
        )
        print(table_row(*cells), flush=True)


def main() -> None:
    """Record texts, or learn from them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("shift", "record", "learn"))
    parser.add_argument("--target", type=Path, default=path(TARGET), help="its GGUF file")
    parser.add_argument("--texts", type=Path, help="folder of the texts")
    parser.add_argument("--plain", action="store_true", help="questions of the demo models")
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
        asked = list(questions(args.count, args.seed, is_plain=args.plain))
        write_texts(args.texts, args.target, asked)
    elif args.step == "shift":
        shift(args)
    else:
        learn(args)


if __name__ == "__main__":
    main()
