"""Texts to measure `headstart distill` with: about a code base with names and idioms of its own.

    python -m benchmarks.distill --texts DIR
        the demo target answers questions about it, recorded as a server records them
    headstart distill train -m target.gguf -md draft.gguf --texts DIR
        tunes the demo draft model on the earlier conversations, and proves it on the later ones

`--plain` takes the standard library as it is: the models were trained on it. target.gguf and
draft.gguf are the files of the package's folder `app/demo`.
"""

from __future__ import annotations

import argparse
import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from benchmarks.lib.workloads import text_of

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
from headstart.extras.distill.recorder import TextRecorder
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


def main() -> None:
    """Record texts into a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, required=True, help="folder for the texts")
    parser.add_argument("--plain", action="store_true", help="the library as it is")
    parser.add_argument("--count", type=int, default=1200, help="answers to record")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    library = read_library() if args.plain else project()
    write_texts(args.texts, library, args.count, args.seed)


if __name__ == "__main__":
    main()
