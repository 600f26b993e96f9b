"""Requests for models that do not fit into memory together: how long swaps take, and how much
memory the processes hold meanwhile.

    python -m benchmarks.model_swaps --memory 2500 a.gguf b.gguf c.gguf [--requests N] [--clients N]

Starts a router with a preset for each file and `--models-memory`, asks random models from several
clients at once, and adds up what all of its processes hold (proportional set size, so that shared
pages count once). Pages of files, as mapped weights are, can be taken back by the system and are
counted apart. Every prompt of a model begins the same, so that what comes
back with a model (`--keep-slots`) shows in the prompt tokens that were read.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 2**20
PREFIX = "def area(width, height):\n    return width * height\n\n\n" * 8


@dataclass(slots=True)
class Swaps:
    """What was seen."""

    loads: list[float] = field(default_factory=list)
    unloads: int = 0
    answers: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    num_cached: int = 0
    num_prompt: int = 0
    peak_own_bytes: int = 0  # that the system cannot take back
    peak_bytes: int = 0
    most_loaded: int = 0


class Watcher(threading.Thread):
    """Adds up memory and times loads until it is told to stop."""

    def __init__(self, url: str, pid: int, seen: Swaps) -> None:
        super().__init__(daemon=True)
        self._url, self._pid, self._seen = url, pid, seen
        self.is_over = False

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        while not self.is_over:
            own, all_bytes = tree_bytes(self._pid)
            self._seen.peak_own_bytes = max(self._seen.peak_own_bytes, own)
            self._seen.peak_bytes = max(self._seen.peak_bytes, all_bytes)
            time.sleep(0.25)

    def _listen(self) -> None:
        began: dict[str, float] = {}
        loaded: set[str] = set()
        with urllib.request.urlopen(f"{self._url}/models/sse") as stream:
            for line in stream:
                if not line.startswith(b"data: "):
                    continue
                event = json.loads(line[6:])
                model, status = event["model"], event["data"]["status"]
                if status == "loading":
                    began[model] = time.monotonic()
                elif status == "loaded":
                    self._seen.loads.append(time.monotonic() - began[model])
                    loaded.add(model)
                elif status == "unloaded" and model in loaded:
                    loaded.discard(model)
                    self._seen.unloads += 1
                self._seen.most_loaded = max(self._seen.most_loaded, len(loaded))


def main() -> int:
    """Run it once and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--memory", type=int, required=True, help="MiB for all models together")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    seen = Swaps()
    with tempfile.TemporaryDirectory() as folder:
        process, url = start(options, Path(folder))
        watcher = Watcher(url, process.pid, seen)
        try:
            watcher.start()
            time.sleep(1)
            started = time.monotonic()
            ask_all(url, options, seen)
            seconds = time.monotonic() - started
        finally:
            watcher.is_over = True
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    print(table(options, seen, seconds))
    return 1 if seen.failures else 0


def start(options: argparse.Namespace, folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A router of these models, and its address."""
    sections = [f"[{path.stem}]\nmodel = {path.resolve()}\n" for path in options.models]
    preset = "version = 1\n[*]\nc = 2048\nnp = 1\ncache-ram = 64\nspec-state = none\n"
    (folder / "models.ini").write_text(preset + "".join(sections))
    process = subprocess.Popen(
        [sys.executable, "-m", "headstart", "serve", "--port", "0", "--models-max", "0",
         "--models-preset", str(folder / "models.ini"), "--models-memory", str(options.memory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"HEADSTART_CACHE": str(folder), "LLAMA_CACHE": str(folder)},
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"listens on (http://\S+?)\. ", line):
            return process, found[1]
    raise RuntimeError("the router did not start")


def ask_all(url: str, options: argparse.Namespace, seen: Swaps) -> None:
    """Random models, several at once."""
    chooser = random.Random(options.seed)
    names = [chooser.choice(options.models).stem for _ in range(options.requests)]

    def ask(number: int) -> None:
        prompt = PREFIX + f"def f{number}("
        body = {"model": names[number], "prompt": prompt, "max_tokens": options.tokens}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
        started = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                timings: dict[str, Any] = json.load(answer)["timings"]
        except urllib.error.HTTPError as error:
            seen.failures.append(f"{names[number]}: {error.read().decode()}")
            return
        seen.answers.append(time.monotonic() - started)
        seen.num_prompt += timings["prompt_n"] + timings["cache_n"]
        seen.num_cached += timings["cache_n"]

    with ThreadPoolExecutor(options.clients) as pool:
        list(pool.map(ask, range(options.requests)))


def tree_bytes(pid: int) -> tuple[int, int]:
    """What a process and all below it hold: without pages of files, and with them."""
    own, total, pending = 0, 0, [pid]
    while pending:
        one = pending.pop()
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
            sizes = dict(re.findall(r"^(Pss\w*): +(\d+) kB", text, re.MULTILINE))
            total += 1024 * int(sizes["Pss"])
            own += 1024 * (int(sizes["Pss"]) - int(sizes["Pss_File"]))
            for task in Path(f"/proc/{one}/task").iterdir():
                pending += [int(child) for child in (task / "children").read_text().split()]
        except (OSError, KeyError):
            continue  # it has ended
    return own, total


def table(options: argparse.Namespace, seen: Swaps, seconds: float) -> str:
    """What is printed."""
    sizes = sum(path.stat().st_size for path in options.models)
    rows = [
        ("models, MiB of their files", f"{len(options.models)}, {sizes / MIB:.0f}"),
        ("budget, MiB", str(options.memory)),
        ("most that all processes held, MiB", f"{seen.peak_own_bytes / MIB:.0f}"),
        ("the same with pages of files, MiB", f"{seen.peak_bytes / MIB:.0f}"),
        ("most models loaded at once", str(seen.most_loaded)),
        ("requests, of them failed", f"{options.requests}, {len(seen.failures)}"),
        ("seconds, clients", f"{seconds:.0f}, {options.clients}"),
        ("loads, unloads", f"{len(seen.loads)}, {seen.unloads}"),
        ("seconds of a load: median, 90 %, most", _spread(seen.loads)),
        ("seconds of a request: median, 90 %, most", _spread(seen.answers)),
        ("prompt tokens, of them cached", f"{seen.num_prompt}, {seen.num_cached}"),
    ]
    lines = [
        "| what | value |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in rows),
    ]
    return "\n".join([*lines, *(f"\nfailed: {one}" for one in seen.failures[:5])])


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    if not ordered:
        return "none"
    picks = (ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.9)], ordered[-1])
    return ", ".join(f"{pick:.1f}" for pick in picks)


if __name__ == "__main__":
    raise SystemExit(main())
