"""Prompts on the disk: what a restart costs with and without them, and what they cost meanwhile.

    python -m benchmarks.stored_prompts --model models/0.2b-Q4_K_M.gguf [--only restart]

`restart`: milliseconds to the first token of a prompt of 4,096 tokens that a server reads, that it
has in its slot, and that another server brings back from the disk; in turn, with the file in the
disk's cache (as after a restart) and without it (`posix_fadvise`).
`writing`: milliseconds of a step of one answer while prompts of that size are written all the time,
and while none is, in turn.
`copies`: milliseconds of the loop to copy such a prompt's state out of the cache, and back.
`lookup`: time to list a folder of many prompts and to find one of them; no model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from headstart.app.assemble import Models, build_scheduler
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.extras.bench.client import started
from headstart.scheduler.disk_cache import DiskCache, DiskPlace
from headstart.scheduler.host_cache import TARGET, StoredPrompt
from headstart.structures.checkpoints import pack
from headstart.structures.prompt_files import PromptHead, write_prompt
from headstart.types.request import Request

NUM_TOKENS = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--only", choices=("restart", "writing", "copies", "lookup"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only in (None, "lookup"):
            for count, length in ((64, 8192), (2_000, 8192), (10_000, 2048)):
                look_up(folder / str(count), count, length)
        if options.model and options.only in (None, "restart"):
            restart(folder / "restart", options.model, options.rounds)
        if options.model and options.only in (None, "writing"):
            write(folder / "writing", options.model, options.rounds)
        if options.model and options.only in (None, "copies"):
            copy(options.model, options.rounds)
    return 0


def look_up(folder: Path, count: int, length: int) -> None:
    """List so many prompts of so many tokens behind a common beginning, and find each."""
    place = DiskPlace(folder, 2**50, "model", "", "m")
    first = DiskCache(place)
    first.finish(10.0)
    own = Path(first._own)
    own.mkdir(parents=True)
    common = list(range(1000))
    texts = [array("i", [*common, n, *range(n, n + length - 1001)]) for n in range(count)]
    for number, text in enumerate(texts):  # sparse: states are not read here
        head = PromptHead("model", "", text, length, (), {TARGET: 0})
        write_prompt(own / f"{number:032x}.prompt", head, [b""])
    began = time.perf_counter()
    disk = DiskCache(place)
    made = time.perf_counter() - began
    disk._writer.submit(int).result()
    listed = time.perf_counter() - began
    times = []
    for text in texts[:: max(1, count // 200)]:
        query = array("i", [*text[:-5], 1, 2, 3, 4, 5])
        began = time.perf_counter()
        _, shared = disk.find("", query)
        times.append(time.perf_counter() - began)
        assert shared == length - 5
    disk.finish(1.0)
    print(
        f"lookup: {count} prompts of {length} tokens: {1e3 * made:.1f} ms until the start goes on, "
        f"{1e3 * listed:.0f} ms until all are listed, {1e3 * statistics.median(times):.3f} ms a "
        f"lookup ({1e3 * max(times):.3f} at most)"
    )


def restart(folder: Path, model: Path, rounds: int) -> None:
    """Milliseconds to the first token, cold, from the slot, and from the disk."""
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "headstart",
        "serve",
        "-m",
        str(model),
        "--parallel",
        "1",
        "--spec",
        "off",
    ]
    command += ["--context", str(NUM_TOKENS + 256), "--spec-state", "none"]
    command += ["--cache-disk", "8192", "--cache-disk-path", str(folder / "prompts")]
    times: dict[str, list[float]] = {"cold": [], "slot": [], "disk": [], "disk, not cached": []}
    for number in range(rounds):
        prompt = [100 + (i * 7 + number * 13 + i * i % 97) % 900 for i in range(NUM_TOKENS)]
        with started(command, folder / "log") as (_, url):
            first_token(url, [5] * 64)
            times["cold"].append(first_token(url, prompt))
            times["slot"].append(first_token(url, prompt))
        for name in ("disk", "disk, not cached"):
            if name != "disk":
                for file in (folder / "prompts").glob("*/*"):
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
                        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with started(command, folder / "log") as (_, url):
                first_token(url, [5] * 64)
                times[name].append(first_token(url, prompt))
    cold = statistics.median(times["cold"])
    size = sum(file.stat().st_size for file in (folder / "prompts").glob("*/*")) / rounds / 2**20
    print(f"restart: {model.stem}, {NUM_TOKENS} tokens, {size:.0f} MiB a prompt")
    for name, all_times in times.items():
        median = statistics.median(all_times)
        print(f"  {name}: {1e3 * median:.0f} ms, {median / cold:.1%} of cold ({rounds} rounds)")


def first_token(url: str, prompt: list[int]) -> float:
    """Seconds until a server's first token."""
    body: dict[str, Any] = {"prompt": prompt, "n_predict": 1, "temperature": 0}
    with closing(HTTPConnection(url.partition("//")[2], timeout=900)) as connection:
        began = time.perf_counter()
        connection.request("POST", "/completion", json.dumps(body))
        answer = json.load(connection.getresponse())
        assert answer["tokens_predicted"] == 1, answer
        return time.perf_counter() - began


def write(folder: Path, model: Path, rounds: int) -> None:
    """Milliseconds of a step, with a prompt being written all the time and without."""
    config = Config(
        engine=EngineConfig(context=1024, gpu_layers=0),
        scheduler=SchedulerConfig(parallel=1, cache_disk=8192, cache_disk_path=str(folder)),
        speculation=SpeculationConfig(spec="off", spec_state="none"),
    )
    scheduler, _ = build_scheduler(config, Models(model, None, is_demo=False))
    disk = scheduler.cache.host.disk
    assert disk is not None
    state = bytes(32 * NUM_TOKENS * 1024)  # 32 KiB a token, as of a 1 B model
    steps: dict[str, list[float]] = {"no file": [], "writing": []}
    num_files = 0
    for turn in range(2 * rounds):
        name = ("no file", "writing")[turn % 2]
        scheduler.submit(Request(request_id=str(turn), prompt=[5 + turn] * 32, max_tokens=200))
        while scheduler.has_work:
            if name == "writing" and not disk._waiting:
                tokens = array("i", [num_files]) * NUM_TOKENS
                disk.put(StoredPrompt("", tokens, {TARGET: pack(state, [])}, 0, time.time()))
                num_files += 1
            began = time.perf_counter()
            scheduler.step()
            steps[name].append(time.perf_counter() - began)
        while disk._waiting:
            time.sleep(0.01)
    plain, writing = (statistics.fmean(steps[name]) for name in ("no file", "writing"))
    print(
        f"writing: {model.stem}: a step takes {1e3 * plain:.2f} ms, {1e3 * writing:.2f} while "
        f"{num_files} files of {len(state) >> 20} MiB are written ({writing / plain - 1:+.1%})"
    )
    scheduler.cache.host.finish()


def copy(model: Path, rounds: int) -> None:
    """Milliseconds of the copies that only the loop can make: they need libllama's context."""
    config = Config(
        engine=EngineConfig(context=2 * NUM_TOKENS, gpu_layers=0),
        scheduler=SchedulerConfig(parallel=2),
        speculation=SpeculationConfig(spec="off", spec_state="none"),
    )
    scheduler, _ = build_scheduler(config, Models(model, None, is_demo=False))
    engine, prompt = scheduler.engine, [5 + i % 900 for i in range(NUM_TOKENS)]
    scheduler.submit(Request(request_id="0", prompt=prompt, max_tokens=1))
    while scheduler.has_work:
        scheduler.step()
    (held,) = (cells.seq_id for cells in scheduler.cells if cells.length)
    times: dict[str, list[float]] = {"save": [], "restore": []}
    for _ in range(5 * rounds):
        began = time.perf_counter()
        state = engine.save_sequence(held)
        saved = time.perf_counter()
        assert engine.restore_sequence(1 - held, state)
        times["save"].append(saved - began)
        times["restore"].append(time.perf_counter() - saved)
        engine.clear(1 - held)
    save, back = (1e3 * statistics.median(times[name]) for name in ("save", "restore"))
    print(
        f"copies: {model.stem}, {NUM_TOKENS} tokens, {len(state) >> 20} MiB: {save:.1f} ms to main "
        f"memory, {back:.1f} ms back"
    )


if __name__ == "__main__":
    sys.exit(main())
