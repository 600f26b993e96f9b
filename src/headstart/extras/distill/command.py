"""`headstart distill`: tune a draft model on recorded texts, where that pays."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.config import option
from headstart.config.fields import listed
from headstart.structures.tenants import namespaces_of
from headstart.types.errors import ConfigError

USAGE = "purge --texts DIR [flags]"


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions:
    """Which texts, and what to do with them."""

    texts: str | None = option(None, "folder of headstart serve --record-texts")
    tenants: str | None = option(
        None, "API keys or tenants whose texts to take, separated by commas; default: all",
        is_secret=True,
    )  # fmt: skip
    older_than_days: float = option(0.0, "purge only texts recorded before that", least=0.0)


def run(resolved: Resolved, words: list[str]) -> int:
    """Do one step; return the exit code."""
    options = resolved.own(DistillOptions)
    if words != ["purge"] or options.texts is None:
        raise ConfigError(f"say what to do with which texts: headstart distill {USAGE}")
    tenants = None if options.tenants is None else namespaces_of(listed(options.tenants))
    return _purge(Path(options.texts), tenants, options.older_than_days)


def _purge(folder: Path, tenants: frozenset[str] | None, days: float) -> int:
    from headstart.extras.distill.texts import purge

    if not folder.is_dir():
        raise ConfigError(f"--texts {folder} is no folder")
    num_deleted, made = purge(folder, tenants, time.time() - 86_400.0 * days)
    print(f"deleted {num_deleted} texts from {folder}")
    for drafter in made:
        print(f"learned from some of them, so delete it or train it again: {drafter['path']}")
    return 0


COMMAND = Command(
    name="distill",
    about=(
        "Learn from the texts that headstart serve --record-texts kept. purge deletes them, and "
        "names the draft models that learned from them."
    ),
    options=DistillOptions,
    parts=None,
    usage=USAGE,
    run=run,
)
