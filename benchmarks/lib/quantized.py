"""Tiny models in the quantizations that people use, what drafts for each, texts that differ."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from tests import drafters
from tests.architectures import Settings, write_model
from tests.heads import changes_for
from tests.models import OTHER_MERGES, SMALLER, tiny_llama

from headstart.app import demo
from headstart.app.speculation import without_file

FORMATS = ("Q4_K_M", "Q8_0", "Q4_0", "F16")
Write = Callable[[Path], Path]

_WIDE: Settings = {  # K-quants have blocks of 256
    "embedding_length": 256,
    "attention.head_count": 4,
    "feed_forward_length": 512,
}
_EXPERTS = _WIDE | {"expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 512}
_HYBRID = _WIDE | {"block_count": 4, "ssm.inner_size": 512, "ssm.time_step_rank": 4}
_DEEP = _WIDE | {"block_count": drafters.NUM_TARGET_LAYERS}
_READER = drafters.Sizes(width=256, target_width=256, own_embeddings=False, own_head=False)


class Kind(NamedTuple):
    """A target, and who drafts for it with which file."""

    target: Write
    speculators: str = without_file()
    draft: Write | None = None


def _embedded(name: str) -> Write:
    return lambda path: Path(shutil.copyfile(demo.path(name), path))


def _model(architecture: str, changes: Settings, num_heads: int = 0) -> Write:
    if num_heads:
        changes = changes_for(architecture, num_heads, changes)
    return partial(write_model, architecture=architecture, changes=changes)


_TEXT_AND_DRAFT = f"{without_file()},draft-model"
_SMALL = partial(tiny_llama, shape=SMALLER)
MODELS = {
    "demo": Kind(_embedded(demo.TARGET), _TEXT_AND_DRAFT, _embedded(demo.DRAFT)),
    "plain": Kind(_model("llama", _WIDE), _TEXT_AND_DRAFT, _SMALL),
    "window": Kind(_model("gemma3", _WIDE), _TEXT_AND_DRAFT, _SMALL),
    "hybrid": Kind(_model("qwen35", _HYBRID), _TEXT_AND_DRAFT, _SMALL),
    "experts": Kind(
        _model("qwen3moe", _EXPERTS), _TEXT_AND_DRAFT, partial(_SMALL, merges=OTHER_MERGES)
    ),
    "heads": Kind(_model("qwen35", _HYBRID, 1), "mtp"),
    "heads-window": Kind(_model("step35", _EXPERTS, 2), "mtp"),
    "eagle3": Kind(_model("llama", _DEEP), "eagle3", partial(drafters.eagle3, sizes=_READER)),
    "dflash": Kind(_model("llama", _DEEP), "dflash", partial(drafters.dflash, sizes=_READER)),
    "dspark": Kind(
        _model("llama", _DEEP), "dspark", partial(drafters.dflash, sizes=_READER, rank=16)
    ),
    "assistant": Kind(
        _model("gemma4", {}), "gemma4-assistant", partial(drafters.assistant, backbone=128)
    ),
}
"""By what is special about them. The assistant's target is too narrow for K-quants, which libllama
replaces."""


def write(folder: Path, name: str, format_name: str, quantize: str) -> list[str]:
    """Write a kind's files where they are missing; the flags that name them.

    Args:
        quantize: llama.cpp's llama-quantize.
    """
    kind = MODELS[name]
    path, draft = folder / f"{name}-{format_name}.gguf", folder / f"{name}-draft.gguf"
    if kind.draft is not None and not draft.exists():
        kind.draft(draft)
    if not path.exists():
        raw = kind.target(folder / f"{name}-F32.gguf")
        command = [quantize, "--allow-requantize", str(raw), str(path), format_name]
        subprocess.run(command, capture_output=True, check=True)
    named = [] if kind.draft is None else ["--draft-model", str(draft)]
    return ["--model", str(path), *named, "--spec-type", kind.speculators]


def verify(folder: Path, names: Sequence[str], flags: str, quantize: str) -> dict[str, Any]:
    """What `headstart verify` says of these kinds in all quantizations, by the model's name."""
    folder.mkdir(exist_ok=True)
    key = hashlib.sha256(flags.encode()).hexdigest()[:8]
    reports = {}
    for format_name, name in product(FORMATS, names):
        report = folder / f"{name}-{format_name}-{key}.json"
        if not report.exists():
            own = write(folder, name, format_name, quantize)
            command = [sys.executable, "-m", "headstart", "verify", "--json", *own]
            done = subprocess.run(
                [*command, *flags.split()], capture_output=True, text=True, check=False
            )
            if not done.stdout:
                print(f"{report.stem}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
                continue
            report.write_text(done.stdout, "utf-8")
        reports[report.stem.removesuffix(f"-{key}")] = json.loads(report.read_text("utf-8"))
        print(report.stem, reports[report.stem.removesuffix(f"-{key}")]["verdict"], file=sys.stderr)
    return reports


def texts_table(reports: Mapping[str, Any]) -> str:
    """Texts and how many part, by the parts of a way and of a model's name."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, report in reports.items():
        labels = {way: _labels(name, way) for way in report["ways"]}
        for way, num in report["ways"].items():
            for label in labels[way]:
                counts[label]["texts"] += num
        for one in report["differences"]:
            for label in labels[one["way"]]:
                counts[label][one["kind"]] += 1
    lines = ["| | texts | near ties | different |", "| --- | --- | --- | --- |"]
    for label, found in counts.items():
        lines.append(f"| {label} | {found['texts']} | {found['near tie']} | {found['different']} |")
    return "\n".join(lines)


def _labels(name: str, way: str) -> list[str]:
    kind, _, format_name = name.rpartition("-")
    speculation, slots, prompts = way.split(", ")
    speculator = speculation.split()[0]
    if speculator in ("off", "auto"):
        speculator += f", {slots}"
    return ["all", format_name, kind, prompts, speculator]
