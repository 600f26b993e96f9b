"""What drafts earn behind an image, and whether another server reads images the same way.

    python -m benchmarks.images [--drafts suffix,draft-model] [-md FILE] [--questions 40]
    python -m benchmarks.images --against llama-server
    python -m benchmarks.images --beside models/0.2b-Q4_K_M.gguf [--against llama-server]

Models and projectors are made, so that every picture is noise: what is measured is whether
speculators go on behind an image, not what a model knows of pictures. For each way of drafting a
server with the demo model answers the same edits over HTTP at two temperatures, 4 tokens a draft,
behind an image, behind a text of as many tokens and behind neither. The exit code is 1 where the
share of accepted draft tokens or the tokens of a step behind images are less than 0.9 of those
behind texts.

With `--against` the two servers complete prompts with images and sounds of many kinds, for a
causal, a non-causal and an M-RoPE projector, with the same greedy settings and one thread: the
tokens of the prompt, the text and the log probabilities of the first token are compared.

With `--beside` one user's stream is read while another's images come, one after the other, each of
576 cells from a projector of 57 M weights: the pauses of the stream. Several servers take turns.
"""

from __future__ import annotations

import argparse
import base64
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from itertools import pairwise, repeat
from pathlib import Path
from random import Random
from statistics import median
from threading import Event
from typing import Any

from benchmarks.traffic import read
from PIL import Image
from tests.architectures import write_model
from tests.images import Kind, VisionSize, flac, mp3, picture, projector, wav

from headstart.app import demo
from headstart.engine.gguf_header import GgufHeader
from headstart.extras.bench.client import HEADSTART, TENANT_HEADER, Answer, Client, running
from headstart.extras.bench.library import Question, make_questions
from headstart.extras.bench.report import table_head, table_row

CELLS = 16  # of an image
LIMIT = 0.9
KEY = "key"  # with which tenants are kept apart: no answer is drafted from an earlier one
DRAFTS = "ngram-simple,ngram-mod,suffix,draft-model"


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--drafts", default=DRAFTS, help="ways of drafting, with commas")
    parser.add_argument("-md", type=Path, default=demo.path(demo.DRAFT), help="draft model or head")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--against", metavar="COMMAND", help="llama-server, to compare with")
    parser.add_argument("--beside", type=Path, metavar="MODEL", help="measure a stream's pauses")
    given = parser.parse_args()
    if given.beside:
        return measure_pauses(given.beside, shlex.split(given.against or ""))
    if given.against:
        return compare_servers(shlex.split(given.against))
    questions = make_questions("edit", given.questions, 0)
    print(
        table_head(
            "drafts", "in front", "prompts", "drafted", "accepted", "tokens a step", "of text's"
        )
    )
    is_missed = False
    with tempfile.TemporaryDirectory() as folder:
        mmproj = projector(Path(folder, "mmproj.gguf"), "janus_pro", 256)
        for name in given.drafts.split(","):
            flags = ["-m", demo.path(demo.TARGET), "--mmproj", mmproj, "-c", 4096, "-np", 2]
            flags += ["--spec-type", name, "--spec", "fixed", "--spec-draft-n-max", 4]
            flags += ["--tenant-header", TENANT_HEADER, "--api-key", KEY, "-t", 1]
            flags += ["-md", given.md] if name in ("draft-model", "eagle3") else []
            command = [*HEADSTART, "serve", *map(str, flags)]
            with running(command, Path(folder, "log"), KEY) as client:
                is_missed |= compare(name, client, questions)
    return int(is_missed)


def compare(name: str, client: Client, questions: Sequence[Question]) -> bool:
    """Print a row for each thing in front; whether an image costs too much."""
    found = {front: measured(client, questions, front) for front in FRONTS}
    is_missed = False
    for front, (num_prompt, drafted, share, per_step) in found.items():
        ratios = [share / found["text"][2], per_step / found["text"][3]]
        is_missed |= front == "image" and min(ratios) < LIMIT
        row = (f"{share:.3f}", f"{per_step:.3f}", ", ".join(f"{ratio:.2f}" for ratio in ratios))
        print(table_row(name, front, num_prompt, drafted, *row), flush=True)
    return is_missed


def measured(
    client: Client, questions: Sequence[Question], front: str
) -> tuple[int, int, float, float]:
    """Tokens of prompts and drafted ones, the share that was accepted, tokens a step."""
    asked = []
    for number, question in enumerate(questions):
        (text,) = question.turns
        parts = [*FRONTS[front](number), {"type": "text", "text": text}]
        asked.append(replace(question, turns=([{"role": "user", "content": parts}],)))
    answers: list[Answer] = []
    for temperature in (0.0, 1.0):
        fields: Mapping[str, Any] = {"temperature": temperature, "max_tokens": 200}
        answers += client.ask_all(
            asked, users=2, tenants=repeat(f"{front} {temperature}"), **fields
        )

    def total(name: str) -> int:
        return sum(answer.timings.get(name, 0) for answer in answers)

    drafted, accepted, written = map(total, ("draft_n", "draft_n_accepted", "predicted_n"))
    num_prompt = total("prompt_n") + total("cache_n")
    return num_prompt, drafted, accepted / max(1, drafted), written / (written - accepted)


def _image(number: int) -> list[dict[str, Any]]:
    url = "data:image/png;base64," + base64.b64encode(picture(number)).decode()
    return [{"type": "image_url", "image_url": {"url": url}}]


def _text(number: int) -> list[dict[str, Any]]:
    """Letters in random order: each is a token, and so many are as long as an image."""
    letters = Random(number).choices("BCDFGHJKLMNPQRSTVWXZ", k=CELLS)
    return [{"type": "text", "text": "".join(letters)}]


FRONTS: Mapping[str, Callable[[int], list[dict[str, Any]]]] = {
    "image": _image,
    "text": _text,
    "nothing": lambda _: [],
}


TARGETS: Mapping[str, Kind] = {
    "demo": "janus_pro",
    "gemma3": "gemma3",
    "qwen2vl": "qwen2vl_merger",
}


def compare_servers(command: Sequence[str]) -> int:
    """Print a row for each kind of projector; 1 if anything differs."""
    print(table_head("model", "prompts", "same tokens", "same text", "largest difference, log p"))
    is_different = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for target, kind in TARGETS.items():
            is_demo = target == "demo"
            file = (
                demo.path(demo.TARGET)
                if is_demo
                else write_model(folder / "t.gguf", target, changes={"embedding_length": 64})
            )
            mmproj = projector(folder / "mmproj.gguf", kind, 256 if is_demo else 64, hears=True)
            flags = ["-m", str(file), "--mmproj", str(mmproj), "-c", "2048", "-np", "1", "-t", "1"]
            ours = list(completions([*HEADSTART, "serve", "--spec", "off", *flags], folder))
            pairs = list(zip(ours, completions([*command, *flags], folder), strict=True))
            counts = [
                sum(a[name] == b[name] for a, b in pairs)
                for name in ("tokens_evaluated", "content")
            ]
            apart = max(
                abs(p - q) for a, b in pairs for p, q in zip(*map(_first, (a, b)), strict=True)
            )
            is_different |= min(counts) < len(pairs)
            print(table_row(target, len(pairs), *counts, f"{apart:.0e}"), flush=True)
    return int(is_different)


def completions(command: Sequence[str], folder: Path) -> Iterator[dict[str, Any]]:
    """A server's answers to all prompts."""
    environment = os.environ | {"LLAMA_MEDIA_MARKER": "<__media__>"}
    with running(command, folder / "log", environment=environment) as client:
        for images in prompts():
            marks = "<__media__>" * len(images)
            data = [base64.b64encode(image).decode() for image in images]
            prompt = {"prompt_string": f"Look {marks} def area(w):\n", "multimodal_data": data}
            body = {"prompt": prompt, "n_predict": 100, "temperature": 0, "n_probs": 3}
            yield client.call("/completion", body)


def _first(answer: Mapping[str, Any]) -> list[float]:
    """Of the first token's best: what they were given."""
    return [one["logprob"] for one in answer["completion_probabilities"][0]["top_logprobs"]]


def prompts() -> Iterator[list[bytes]]:
    """Files of prompts: images of many sizes, modes of pixels and kinds, and sounds."""
    for size in ((28, 28), (56, 40), (9, 7), (200, 100), (1, 1), (3, 90)):
        yield [picture(size[0], *size)]
    image = Image.open(BytesIO(picture(8, 64, 48)))
    for kind, modes in {"PNG": "L,1,P,RGBA,LA", "JPEG": "L,RGB,CMYK", "GIF": "P"}.items():
        for mode in modes.split(","):
            file = BytesIO()
            image.convert(mode).save(file, kind)
            yield [file.getvalue()]
    yield [picture(1), picture(2, 56, 40)]
    for sound in (wav(1), wav(2, 40, 44100), wav(3, 0.2, 8000), mp3(40), flac(16000)):
        yield [sound]
    yield [picture(1), wav(4)]


LARGE = VisionSize(768, num_heads=12, num_blocks=8, image=384, patch=16)
ROUNDS = 3


def measure_pauses(model: Path, command: Sequence[str]) -> int:
    """Print a row for each server and round."""
    print(table_head("server", "an image, s", "alone: median, longest, ms", "beside images"))
    with tempfile.TemporaryDirectory() as name:
        header, folder = GgufHeader(model), Path(name)
        width = header.number(f"{header.architecture}.embedding_length")
        mmproj = projector(folder / "mmproj.gguf", "janus_pro", width, size=LARGE)
        flags = ["-m", str(model), "--mmproj", str(mmproj), "-c", "8192", "-np", "2"]
        servers = {"Headstart": [*HEADSTART, "serve", "--spec", "off"]}
        if command:
            servers[command[0].rpartition("/")[2]] = [*command]
        for server in [*servers] * ROUNDS:
            with running([*servers[server], *flags], folder / "log") as client:
                seconds, *pauses = pauses_beside_images(client)
            row = [f"{median(ms):.1f}, {max(ms):.0f}" for ms in pauses]
            print(table_row(server, f"{median(seconds):.1f}", *row), flush=True)
    return 0


def pauses_beside_images(client: Client) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each image; milliseconds between two tokens of a stream, alone and meanwhile."""
    over, arrivals, ends = Event(), list[float](), list[float]()
    with ThreadPoolExecutor() as pool:
        stream = pool.submit(read, client, [*range(50, 60)], 3000, over, arrivals)
        try:
            while len(arrivals) < 300 and not stream.done():
                time.sleep(0.05)
            ends.append(time.monotonic())
            for number in range(3):
                messages = [{"role": "user", "content": _image(number)}]
                client.call("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
                ends.append(time.monotonic())
        finally:
            over.set()
        stream.result()
    pairs = list(pairwise(arrivals))
    alone = [1000 * (b - a) for a, b in pairs if b < ends[0]]
    beside = [1000 * (b - a) for a, b in pairs if b >= ends[0] and a < ends[-1]]
    return [b - a for a, b in pairwise(ends)], alone, beside


if __name__ == "__main__":
    sys.exit(main())
