"""Ten turns without the thoughts of earlier ones: prompt tokens read, and memory, next to
llama-server's.

    python -m benchmarks.conversations --llama-server build/bin/llama-server

Generated models with recurrent layers and with sliding windows, whose caches cannot be cut
anywhere. Each turn's answer is long and the history keeps only a short one in its place, as chat
templates do with thoughts, so each turn departs from what the cache holds. Both servers get the
same messages over HTTP. Memory is what libllama allocates for 32768 tokens and 4 slots, by its
log, without weights.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.architectures import Settings, write_model

from headstart.app.loading import fit_models
from headstart.app.model_files import Models
from headstart.config import Config, EngineConfig, SchedulerConfig, SpeculationConfig
from headstart.engine.footprint import HOST
from headstart.extras.bench.client import HEADSTART, exchange, running
from headstart.extras.bench.report import table_head, table_row

MODELS = {
    "qwen35": "recurrent layers with snapshots",
    "granitehybrid": "recurrent layers",
    "gemma3": "sliding windows",
    "gpt-oss": "sliding windows",
}
TURNS = 10
CONTEXT, SLOTS = 32768, 4
WINDOW = 128  # tokens; less than a turn's answer, as where thoughts are long
ANSWER = 160  # tokens
DRAFT = 8  # draft tokens a step at llama-server, for memory
# Layers, heads and states as in models of these names; widths and vocabulary are small, because
# caches do not depend on them.
_GATED: Settings = {
    "context_length": CONTEXT,
    "embedding_length": 256,
    "feed_forward_length": 64,
    "full_attention_interval": 4,
    "attention.head_count": 4,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
}
SHAPES: dict[str, Settings] = {
    "Qwen3.5-4B": _GATED
    | {
        "block_count": 32,
        "attention.head_count_kv": 4,
        "ssm.time_step_rank": 32,
        "ssm.inner_size": 4096,
    },
    "Qwen3-Next-80B-A3B": _GATED
    | {
        "block_count": 48,
        "attention.head_count_kv": 2,
        "ssm.time_step_rank": 32,
        "ssm.inner_size": 4096,
    },
    "Qwen3.5-0.8B": _GATED
    | {
        "block_count": 24,
        "attention.head_count_kv": 2,
        "ssm.time_step_rank": 16,
        "ssm.inner_size": 2048,
    },
}
OURS = (*HEADSTART, "serve", "--spec-state", "none")
LONG = "Explain it step by step, with all that one has to know of it before. "


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-server", required=True, type=Path)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    arguments = parser.parse_args()
    theirs = (str(arguments.llama_server), "--cache-ram", "0")
    print(table_head("model", "server", *(f"turn {i + 1}" for i in range(TURNS)), "all"))
    memory = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            changes: Settings = {"attention.sliding_window": WINDOW, "context_length": CONTEXT}
            path = write_model(Path(folder) / f"{name}.gguf", name, changes=changes)
            for server, command in (("Headstart", OURS), ("llama-server", theirs)):
                read = _talk(command, path)
                print(table_row(f"{name} ({MODELS[name]})", server, *read, sum(read)), flush=True)
            for drafts in (0, DRAFT):
                their = _their_memory(theirs, path, drafts)
                memory.append((name, drafts, our_memory(path, drafts=drafts > 0)[0], their))
    print()
    print(table_head("model", "drafts", "Headstart, MiB", "llama-server, MiB", "ratio"))
    for name, drafts, ours, their in memory:
        print(table_row(name, drafts, ours, their, f"{ours / their:.3f}"))
    with tempfile.TemporaryDirectory() as folder:
        print_shapes(Path(folder))
    return 0


def _talk(command: Sequence[str], path: Path) -> list[int]:
    """Prompt tokens that each turn reads."""
    messages = [{"role": "system", "content": "You are brief. " * 8}]
    read = []
    log = path.with_suffix(".log")
    with running((*command, "-m", str(path), "-t", "1", "-c", "4096"), log) as client:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"Question {turn}. {LONG}"})
            body = {"messages": messages, "max_tokens": ANSWER, "temperature": 0}
            body |= {"ignore_eos": True}
            lines = exchange(client.url, "/v1/chat/completions", body)
            usage = json.loads(b"".join(lines))["usage"]
            read.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
            messages.append({"role": "assistant", "content": f"It is {turn}."})
    return read


def our_memory(path: Path, *, drafts: bool, parallel: int = SLOTS) -> tuple[float, int]:
    """MiB of cache and computing as a server takes them by default, and its snapshots."""
    config = Config(
        engine=EngineConfig(context=CONTEXT, gpu_layers=0),
        scheduler=SchedulerConfig(parallel=parallel),
        speculation=SpeculationConfig(spec="auto" if drafts else "off"),
    )
    fitted = fit_models(config, Models(path, None, is_demo=False), free={HOST: 2**40})
    use = fitted.uses[HOST]
    return (use.cache + use.compute) / 2**20, fitted.limits.max_draft


def print_shapes(folder: Path) -> None:
    """What snapshots take of models whose caches have the sizes of real ones."""
    print()
    columns = ("caches like", "slots", "without snapshots, MiB", "with", "snapshots", "ratio")
    print(table_head(*columns))
    for name, changes in SHAPES.items():
        path = write_model(folder / "shape.gguf", "qwen35", changes=changes)
        for parallel in (1, SLOTS):
            without, _ = our_memory(path, drafts=False, parallel=parallel)
            mib, snapshots = our_memory(path, drafts=True, parallel=parallel)
            sizes = (f"{without:.0f}", f"{mib:.0f}", snapshots, f"{mib / without:.3f}")
            print(table_row(name, parallel, *sizes))


def _their_memory(command: Sequence[str], path: Path, max_draft: int) -> float:
    # Without fitting, or else the log tells all twice.
    flags: tuple[str, ...] = ("-c", str(CONTEXT), "-np", str(SLOTS), "-kvu", "-fit", "off")
    flags += ("-lv", "5")
    if max_draft:
        flags += ("--spec-type", "ngram-simple", "--spec-draft-n-max", str(max_draft))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with running((*command, "-m", str(path), "-t", "1", *flags), log):
            pass
        pattern = r"(?:KV|RS|compute|output) buffer size = +([\d.]+) MiB"
        sizes = re.findall(pattern, log.read_text())
    return sum(map(float, sizes))


if __name__ == "__main__":
    sys.exit(main())
