"""`headstart distill`: tune a draft model on recorded texts, where that pays."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.config import option
from headstart.config.fields import listed
from headstart.structures.tenants import namespaces_of
from headstart.types.errors import ConfigError

USAGE = "measure|purge --texts DIR [flags]"
STEPS = ("measure", "purge")


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions:
    """Which texts, and what to do with them."""

    texts: str | None = option(None, "folder of headstart serve --record-texts")
    tenants: str | None = option(
        None, "API keys or tenants whose texts to take, separated by commas; default: all",
        is_secret=True,
    )  # fmt: skip
    older_than_days: float = option(0.0, "purge only texts recorded before that", least=0.0)
    drafts: str | None = option(
        None, "GGUF files of further draft models to compare, separated by commas"
    )
    json: bool = option(False, "print everything as JSON")


def run(resolved: Resolved, words: list[str]) -> int:
    """Do one step; return the exit code."""
    options = resolved.own(DistillOptions)
    if len(words) != 1 or words[0] not in STEPS or options.texts is None:
        raise ConfigError(f"say what to do with which texts: headstart distill {USAGE}")
    folder = Path(options.texts)
    tenants = None if options.tenants is None else namespaces_of(listed(options.tenants))
    if words == ["purge"]:
        return _purge(folder, tenants, options.older_than_days)
    return _measure(resolved, options, folder, tenants)


def _purge(folder: Path, tenants: frozenset[str] | None, days: float) -> int:
    from headstart.extras.distill.texts import purge

    if not folder.is_dir():
        raise ConfigError(f"--texts {folder} is no folder")
    num_deleted, made = purge(folder, tenants, time.time() - 86_400.0 * days)
    print(f"deleted {num_deleted} texts from {folder}")
    for drafter in made:
        print(f"learned from some of them, so delete it or train it again: {drafter['path']}")
    return 0


def _measure(
    resolved: Resolved, options: DistillOptions, folder: Path, tenants: frozenset[str] | None
) -> int:
    from headstart.app.model_files import find_models
    from headstart.control.state import ModelId
    from headstart.extras.distill import prices
    from headstart.extras.distill.candidates import Candidates, draft_files
    from headstart.extras.distill.measure import measure
    from headstart.extras.distill.texts import read_texts, split

    config = resolved.config()
    models = find_models(config)
    drafts = list(draft_files(config, listed(options.drafts), models.draft))
    texts = read_texts(folder, ModelId.of(models.target).digest, tenants)
    earlier, later = split(texts)
    candidates = Candidates.of(config, models.target)
    found = measure(candidates, later, earlier, drafts, prices.of_machine(config, models))
    print(json.dumps(found.describe()) if options.json else "\n".join(found.report()))
    return 0


COMMAND = Command(
    name="distill",
    about=(
        "Learn from the texts that headstart serve --record-texts kept. measure says what copies "
        "and draft models give on the later conversations at this machine's prices, and the most "
        "that any draft model could give. purge deletes texts, and names the draft models that "
        "learned from them."
    ),
    options=DistillOptions,
    parts=None,
    usage=USAGE,
    run=run,
)
