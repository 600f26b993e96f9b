"""`headstart cache list|clear`: the prompts that servers keep on this disk."""

from __future__ import annotations

import time
from contextlib import suppress

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.types.errors import ConfigError

USAGE = "list|clear [--cache-disk-path FOLDER]"


def run(resolved: Resolved, words: list[str]) -> int:
    """List what is there by model, or remove it; return the exit code."""
    if words not in (["list"], ["clear"]):
        raise ConfigError(f"say what to do: headstart cache {USAGE}")

    from headstart.app.stored_prompts import prompts_folder
    from headstart.structures.prompt_files import SUFFIX, PromptIndex, StoredFile

    folder = prompts_folder(resolved.config().scheduler)
    for model in sorted(folder.glob("*/")):
        files = list(model.glob(f"*{SUFFIX}"))
        stats = [file.stat() for file in files]
        size = sum(one.st_size for one in stats) / 2**20
        index = PromptIndex()
        for file in files:
            with suppress(ValueError):  # another version's, which no server reads
                index.add(StoredFile.of(file, 0))
        count = index.num_texts
        if words == ["list"] and files:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(s.st_mtime for s in stats)))
            print(f"{count:6} prompts {size:9.1f} MiB  last used {used}  {model.name}")
        if words == ["clear"]:
            for file in files:
                file.unlink(missing_ok=True)
            with suppress(OSError):  # a server writes there
                model.rmdir()
            print(f"removed {count} prompts with {size:.1f} MiB of {model.name}")
    return 0


COMMAND = Command(
    name="cache",
    about=(
        "List or remove the prompts that servers keep on this disk (headstart serve --cache-disk). "
        "Running servers notice when they write the next one."
    ),
    parts=("scheduler",),
    shared=("cache_disk_path",),
    usage=USAGE,
    run=run,
)
