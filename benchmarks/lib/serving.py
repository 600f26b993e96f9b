"""Serving without speculation: against bare llama_decode calls, and what streams cost."""

from __future__ import annotations

import ctypes
import operator
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.lib.arms import answer
from benchmarks.lib.processes import children, read
from benchmarks.lib.workloads import make_prompts

from headstart.app.assemble import Models, build_scheduler
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.engine.context import LlamaEngine
from headstart.engine.library import api
from headstart.extras.bench.client import HEADSTART, Client, running
from headstart.extras.bench.library import Question
from headstart.extras.bench.report import table_head, table_row
from headstart.scheduler.scheduler import Scheduler
from headstart.types import Engine
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

SERVING_LIMIT = 0.97


def bare_rate(engine: Engine, prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """Tokens per second of a loop that does nothing but llama_decode, on the same context."""
    assert isinstance(engine, LlamaEngine)
    handle = engine.handle
    api.llama_memory_clear(api.llama_get_memory(handle), False)
    batch = api.llama_batch_init(1, 0, 1)
    batch.n_tokens, batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 1, 0, 1
    read = (ctypes.c_int32 * len(prompt))(*prompt)
    api.llama_decode(handle, api.llama_batch_get_one(read, len(prompt)))
    started = time.perf_counter()
    for position, token in enumerate(tokens, len(prompt)):
        batch.token[0], batch.pos[0] = token, position
        if api.llama_decode(handle, batch):
            raise RuntimeError(f"llama_decode failed at position {position}")
        api.llama_get_logits(handle)  # waits for the result
    seconds = time.perf_counter() - started
    api.llama_batch_free(batch)
    api.llama_memory_clear(api.llama_get_memory(handle), False)
    return len(tokens) / seconds


def loop_rate(
    scheduler: Scheduler, prompt: Sequence[int], num_tokens: int
) -> tuple[float, Sequence[int]]:
    """Tokens per second through the scheduler, the prompt's step not counted; and the tokens."""
    for cells in scheduler.cells:
        cells.hold([])  # the bare loop emptied the cache
    sampling = SamplingParams(temperature=0.8, ignore_eos=True)
    request = Request(request_id="", prompt=prompt, sampling=sampling, max_tokens=num_tokens)
    run = answer(scheduler, [request])
    seconds = sum(step.finished - step.plan.started for step in run.steps[1:])
    return (num_tokens - 1) / seconds, run.texts[0]


def server_rate(client: Client, prompt: Sequence[int], num_tokens: int) -> float:
    """Tokens per second that a streaming client sees."""
    body = {
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "temperature": 0.8,
        "seed": 0,
        "ignore_eos": True,
    }
    streamed = client.stream("/v1/completions", body)
    return (streamed.num_tokens - 1) / (streamed.arrivals[-1] - streamed.arrivals[0])


def print_serving(model: Path, num_tokens: int, repeats: int, threads: int | None) -> None:
    """Bare calls, the scheduler's loop and the HTTP server in turn; ratios of medians and of each
    turn.
    """
    config = Config(
        engine=EngineConfig(context=1024, threads=threads, ubatch=512),
        scheduler=SchedulerConfig(parallel=1),
        speculation=SpeculationConfig(spec="off", spec_state="none"),
    )
    scheduler, _ = build_scheduler(config, Models(model))
    text = make_prompts("continue", 1, 0)[0].text
    prompt = scheduler.vocab.tokenize(text, add_special=False, parse_special=True)
    _, tokens = loop_rate(scheduler, prompt, num_tokens)
    command = serving(model, threads, 1)
    rates: dict[str, list[float]] = {
        "bare llama_decode": [],
        "scheduler": [],
        "HTTP, streaming": [],
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        running(command, Path(folder) / "server.log") as client,
    ):
        server_rate(client, prompt, num_tokens)
        for _ in range(repeats):
            rates["bare llama_decode"].append(bare_rate(scheduler.engine, prompt, tokens))
            rates["scheduler"].append(loop_rate(scheduler, prompt, num_tokens)[0])
            rates["HTTP, streaming"].append(server_rate(client, prompt, num_tokens))
    bare = rates["bare llama_decode"]
    case = f"{model.stem}, {num_tokens} tokens, {repeats} turns"
    print(f"\n{table_head(case, 'tokens/s', 'of bare', 'turn by turn', 'limit')}")
    for name, values in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(values, bare, strict=True)]
        ratio = statistics.median(ratios)
        verdict = (
            ""
            if values is bare
            else f"{SERVING_LIMIT} {'ok' if ratio >= SERVING_LIMIT else 'MISSED'}"
        )
        turns = " ".join(f"{one:.3f}" for one in ratios)
        print(table_row(name, statistics.median(values), f"{ratio:.3f}", turns, verdict))


def print_busy(model: Path, rounds: int, threads: int | None, against: str) -> None:
    """Milliseconds a token beside programs that never sleep: with threads bound to cores, with
    unbound ones and from another server, in turn.
    """
    ours = serving(model, threads, 1)
    servers = {"bound": (ours, None), "unbound": (ours, {**os.environ, "OMP_PROC_BIND": "false"})}
    if against:
        servers["other"] = shlex.split(against), None
    print(f"\n{table_head('busy programs', *(f'{name}, ms a token' for name in servers))}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        clients = {}
        for name, (command, environment) in servers.items():
            begun = running(command, Path(folder, name), environment=environment)
            clients[name] = stack.enter_context(begun)
            server_rate(clients[name], [1] * 16, 48)
        for num_programs in range(3):
            if num_programs:
                program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                stack.callback(program.kill)
            spent: dict[str, list[float]] = {name: [] for name in servers}
            for number in range(rounds):
                for name, client in clients.items():
                    prompt = [2 + number] * 16
                    spent[name].append(1000.0 / server_rate(client, prompt, 48))
            medians = (f"{statistics.median(of_one):.2f}" for of_one in spent.values())
            print(table_row(num_programs, *medians), flush=True)


def serving(model: Path, threads: int | None, users: int) -> list[str]:
    """The command line of a server without speculation."""
    flags = ["--spec", "off", "-np", str(users), "-c", str(1024 * users)]
    flags += ["-t", str(threads)] if threads else []
    return [*HEADSTART, "serve", "-m", str(model), *flags]


def print_streams(model: Path, rounds: int, threads: int | None) -> None:
    """Processor time of both processes per streamed token, by clients; needs /proc."""
    print(f"\n{table_head('clients', 'web process, ms a token', 'engine, ms a token')}")
    for users in (1, 3, 8):
        asked = [Question((f"Write a story about {n} lighthouses.",)) for n in range(users)]
        num_tokens, spent = 0, [0.0, 0.0]
        with (
            tempfile.TemporaryDirectory() as folder,
            running(serving(model, threads, users), Path(folder, "log")) as client,
        ):
            for number in range(1 + rounds):  # the first warms up
                before = cpu_seconds(client.pid)
                fields: dict[str, Any] = {"max_tokens": 300, "temperature": 1, "ignore_eos": True}
                answers = client.ask_all(asked, **fields)
                web, *children = map(operator.sub, cpu_seconds(client.pid), before)
                if number:
                    num_tokens += sum(one.num_tokens for one in answers)
                    spent = [spent[0] + web, spent[1] + max(children)]
        per_token = (f"{1000 * seconds / num_tokens:.3f}" for seconds in spent)
        print(table_row(users, *per_token), flush=True)


def cpu_seconds(pid: int) -> list[float]:
    """Processor time of a process and of its children."""
    stats = [read(one, "stat").rpartition(")")[2].split() for one in (pid, *children(pid))]
    return [(int(s[11]) + int(s[12])) / os.sysconf("SC_CLK_TCK") for s in stats if s]
