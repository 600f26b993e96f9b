"""Prompts on the disk: what a restart costs with and without them, and what they cost meanwhile.

    python -m benchmarks.stored_prompts --model models/0.2b-Q4_K_M.gguf [--only restart]

`restart`: milliseconds to the first token of a prompt of 4,096 tokens that a server reads, that it
has in its slot, and that another server brings back from the disk; in turn, with the file in the
disk's cache (as after a restart) and without it (`posix_fadvise`).
`writing`: milliseconds of a step of one answer while prompts of that size are written all the time,
and while none is, in turn.
`moving`: milliseconds of an admission beside an answer while such prompts go to main memory and
back.
`lookup`: time to list 16,384 files, 16 GiB of a small model, and to find one prompt; no model. The
files have their names and sizes and no states, of which neither reads anything.
`start`: milliseconds until a server is ready with 8,192 such files, 16 GiB of a model with 1 B, and
with an empty folder, in turn.
`shared`: bytes in main memory and on the disk for conversations behind one system prompt, next to
what their distinct tokens need.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headstart.app.assemble import Models, build_scheduler
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.extras.bench.client import HEADSTART, Client, running
from headstart.scheduler.disk_cache import DiskCache
from headstart.scheduler.offloading import BLOCK
from headstart.scheduler.prompt_store import StoredBlock, StoredPrompt
from headstart.scheduler.scheduler import Scheduler
from headstart.structures.prompt_files import write_prompt
from headstart.types.request import Request

NUM_TOKENS = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument(
        "--only", choices=("restart", "writing", "moving", "lookup", "start", "shared")
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only in (None, "lookup"):
            for count, length in ((128, 8192), (2_000, 512)):
                look_up(folder / str(count), count, length)
        if options.model and options.only in (None, "start"):
            start(folder, options.model, options.rounds)
        if options.model and options.only in (None, "restart"):
            restart(folder / "restart", options.model, options.rounds)
        if options.model and options.only in (None, "writing"):
            write(folder / "writing", options.model, options.rounds)
        if options.model and options.only in (None, "moving"):
            move(options.model, options.rounds)
        if options.model and options.only in (None, "shared"):
            share(folder / "shared", options.model)
    return 0


def open_scheduler(model: Path, context: int, **limits: Any) -> Scheduler:
    """One for this model, without speculation."""
    config = Config(
        engine=EngineConfig(context=context, gpu_layers=0),
        scheduler=SchedulerConfig(**limits),
        speculation=SpeculationConfig(spec="off", spec_state="none"),
    )
    return build_scheduler(config, Models(model))[0]


def look_up(folder: Path, count: int, length: int) -> None:
    """List so many prompts of so many tokens, and find each."""
    named = {"name": "m", "identity": "model", "drafters": ""}
    first = DiskCache(folder, 2**50, **named)
    first.finish(10.0)
    texts = fill(first, count, length, 1 << 20)
    began = time.perf_counter()
    disk = DiskCache(folder, 2**50, **named)
    made = time.perf_counter() - began
    disk.begin()
    busy = disk._writer.submit(time.thread_time).result()
    times = []
    for text in texts[:: max(1, count // 200)]:
        query = array("i", [*text[:-5], 1, 2, 3, 4, 5])
        began = time.perf_counter()
        _, shared = disk.index.find("", query)
        times.append(time.perf_counter() - began)
        assert shared == length - 64
    disk.finish(1.0)
    print(
        f"lookup: {count} prompts of {length} tokens, {len(list(disk.index))} files: "
        f"{1e3 * made:.1f} ms until the start goes on, "
        f"{1e3 * busy:.0f} ms of a thread's processor to list them, "
        f"{1e3 * statistics.median(times):.3f} ms a lookup ({1e3 * max(times):.3f} at most)"
    )


def fill(disk: DiskCache, count: int, length: int, num_bytes: int) -> list[array[int]]:
    """Write files of so many prompts of so many tokens, each as long as a block's; the texts."""
    disk._own.mkdir(parents=True, exist_ok=True)
    texts = [array("i", [n, *range(n, n + length - 1)]) for n in range(count)]
    for text in texts:
        for file, tokens, caches in disk._files_of(in_blocks(text, b"")):
            write_prompt(file.path, tokens, caches)
            os.truncate(file.path, num_bytes)
    return texts


def start(folder: Path, model: Path, rounds: int) -> None:
    """Milliseconds until a server with many prompts on the disk, and one with none, are ready."""
    command = [*HEADSTART, "serve", "-m", str(model), "--spec", "off", "--spec-state", "none"]
    full = folder / "16 GiB" / "prompts"
    kept = ["--cache-disk", "100", "--cache-disk-path", str(full)]
    with running([*command, *kept], folder / "log") as client:
        first_token(client, [5] * 64)  # names the folder of this model
    disk = DiskCache(full, 2**50, name="", identity="", drafters="")
    disk.finish(10.0)
    (disk._own,) = full.iterdir()
    fill(disk, 128, 4096, 2 << 20)
    times: dict[str, list[float]] = {"nothing": [], "16 GiB": []}
    for _ in range(rounds):
        for name, all_times in times.items():
            all_times.append(seconds_to_ready(command, folder / name))
    print(f"start: {model.stem}, milliseconds until it is ready ({rounds} rounds)")
    for name, all_times in times.items():
        each = ", ".join(f"{1e3 * one:.0f}" for one in all_times)
        print(f"  {name} on the disk: {1e3 * statistics.median(all_times):.0f} ({each})")


def seconds_to_ready(command: Sequence[str], cache: Path) -> float:
    """Of a server with this HEADSTART_CACHE and room for all that is there."""
    began = time.perf_counter()
    environment = os.environ | {"HEADSTART_CACHE": str(cache)}
    log = cache.with_suffix(".log")
    with running([*command, "--cache-disk", "100000"], log, environment=environment):
        return time.perf_counter() - began


def in_blocks(tokens: array[int], data: bytes) -> StoredPrompt:
    """A prompt whose blocks all hold the same bytes."""
    ends = range(BLOCK, len(tokens) + BLOCK, BLOCK)
    blocks = tuple(StoredBlock(end - BLOCK, min(end, len(tokens)), data) for end in ends)
    return StoredPrompt("", tokens, blocks, 0, time.time())


def share(folder: Path, model: Path, count: int = 100, length: int = 8000) -> None:
    """Bytes for so many conversations, three quarters of which are one system prompt."""
    limits = {"cache_ram": 100_000, "cache_disk": 100_000, "cache_disk_path": str(folder)}
    scheduler = open_scheduler(model, length + 256, parallel=1, **limits)
    common = 3 * length // 4
    system = [5 + i * i % 900 for i in range(common)]
    for number in range(count + 1):  # the last one moves the one before it to main memory
        own = [5 + (number * 7 + i * i % 89 + i) % 900 for i in range(length - common)]
        scheduler.submit(Request(request_id=str(number), prompt=[*system, *own], max_tokens=1))
        while scheduler.has_work:
            scheduler.step()
    offloading = scheduler.cache.offloading
    disk = offloading.disk
    assert disk is not None
    one = sum(len(block.data) for block in next(iter(offloading.store)).blocks) / length
    needed = one * (common + len(offloading.store) * (length - common))
    while any(map(disk.put, offloading.store)):
        while disk.waiting:
            time.sleep(0.01)
    on_disk = sum(file.stat().st_size for file in folder.glob("*/*"))
    print(
        f"shared: {model.stem}, {len(offloading.store)} conversations of {length} tokens, {common} "
        f"of them alike: main memory {offloading.store.num_bytes / needed:.3f}, disk "
        f"{on_disk / needed:.3f} of {needed / 2**20:.0f} MiB for the distinct tokens"
    )
    disk.finish(1.0)


def restart(folder: Path, model: Path, rounds: int) -> None:
    """Milliseconds to the first token, cold, from the slot, and from the disk."""
    folder.mkdir()
    command = [*HEADSTART, "serve", "-m", str(model), "--parallel", "1", "--spec", "off"]
    command += ["--context", str(NUM_TOKENS + 256), "--spec-state", "none"]
    command += ["--cache-disk", "8192", "--cache-disk-path", str(folder / "prompts")]
    times: dict[str, list[float]] = {"cold": [], "slot": [], "disk": [], "disk, not cached": []}
    for number in range(rounds):
        prompt = [100 + (i * 7 + number * 13 + i * i % 97) % 900 for i in range(NUM_TOKENS)]
        with running(command, folder / "log") as client:
            first_token(client, [5] * 64)
            times["cold"].append(first_token(client, prompt))
            times["slot"].append(first_token(client, prompt))
        for name in ("disk", "disk, not cached"):
            if name != "disk":
                for file in (folder / "prompts").glob("*/*"):
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
                        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with running(command, folder / "log") as client:
                first_token(client, [5] * 64)
                times[name].append(first_token(client, prompt))
    cold = statistics.median(times["cold"])
    size = sum(file.stat().st_size for file in (folder / "prompts").glob("*/*")) / rounds / 2**20
    print(f"restart: {model.stem}, {NUM_TOKENS} tokens, {size:.0f} MiB a prompt")
    for name, all_times in times.items():
        median = statistics.median(all_times)
        print(f"  {name}: {1e3 * median:.0f} ms, {median / cold:.1%} of cold ({rounds} rounds)")


def first_token(client: Client, prompt: list[int]) -> float:
    """Seconds until a server's first token."""
    began = time.perf_counter()
    body: dict[str, Any] = {"prompt": prompt, "n_predict": 1, "temperature": 0}
    answer = client.call("/completion", body)
    assert answer["tokens_predicted"] == 1, answer
    return time.perf_counter() - began


def write(folder: Path, model: Path, rounds: int) -> None:
    """Milliseconds of a step, with a prompt being written all the time and without."""
    limits = {"cache_disk": 8192, "cache_disk_path": str(folder)}
    scheduler = open_scheduler(model, 1024, parallel=1, **limits)
    disk = scheduler.cache.offloading.disk
    assert disk is not None
    state = bytes(32 * BLOCK * 1024)  # 32 KiB a token, as of a 1 B model
    steps: dict[str, list[float]] = {"no file": [], "writing": []}
    num_files = 0
    for turn in range(2 * rounds):
        name = ("no file", "writing")[turn % 2]
        scheduler.submit(Request(request_id=str(turn), prompt=[5 + turn] * 32, max_tokens=200))
        while scheduler.has_work:
            if name == "writing" and not disk.waiting:
                tokens = array("i", [num_files, *range(NUM_TOKENS - 1)])
                disk.put(in_blocks(tokens, state))
                num_files += 1
            began = time.perf_counter()
            scheduler.step()
            steps[name].append(time.perf_counter() - began)
        while disk.waiting:
            time.sleep(0.01)
    plain, writing = (statistics.fmean(steps[name]) for name in ("no file", "writing"))
    print(
        f"writing: {model.stem}: a step takes {1e3 * plain:.2f} ms, {1e3 * writing:.2f} while "
        f"{num_files} prompts of {32 * NUM_TOKENS >> 10} MiB are written "
        f"({writing / plain - 1:+.1%})"
    )
    scheduler.cache.offloading.finish()


def move(model: Path, rounds: int) -> None:
    """Milliseconds of an admission while one prompt and another take turns in a slot, beside an
    answer in the other.
    """
    scheduler = open_scheduler(model, 4 * NUM_TOKENS, parallel=2)
    waits: list[float] = []
    admit = scheduler._admit

    def timed(now: float) -> None:
        began = time.perf_counter()
        admit(now)
        waits.append(time.perf_counter() - began)

    scheduler.submit(Request(request_id="busy", prompt=[7] * 64, max_tokens=NUM_TOKENS))
    scheduler.step()
    for turn in range(2 * rounds):
        if turn == 2:  # both were read
            # the part of a step that looks prompts up is timed where it is
            scheduler._admit = timed  # type: ignore[method-assign]
        text = [*(6 + turn % 2 + i % 700 for i in range(NUM_TOKENS)), turn]
        scheduler.submit(Request(request_id=str(turn), prompt=text, max_tokens=1))
        while len(scheduler.running) + len(scheduler.waiting) > 1:
            scheduler.step()
    print(
        f"moving: {model.stem}: an admission beside an answer takes "
        f"{1e3 * statistics.median(waits):.2f} ms while prompts of {NUM_TOKENS} tokens are moved "
        f"out and back ({1e3 * max(waits):.2f} at most)"
    )


if __name__ == "__main__":
    sys.exit(main())
