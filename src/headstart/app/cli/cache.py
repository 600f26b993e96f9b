"""`headstart cache list|clear`: the prompts that servers keep on this disk."""

from __future__ import annotations

import time
from contextlib import suppress

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.types.errors import ConfigError

USAGE = "list|clear [--cache-disk-path FOLDER]"


def run(resolved: Resolved) -> int:
    """List what is there by model, or remove it; return the exit code."""
    if resolved.words not in (("list",), ("clear",)):
        raise ConfigError(f"say what to do: headstart cache {USAGE}")

    from headstart.app.stored_prompts import prompts_folder
    from headstart.structures.prompt_files import SUFFIX, PromptIndex, StoredFile

    folder = prompts_folder(resolved.config().scheduler)
    found = {model: list(model.glob(f"*{SUFFIX}")) for model in sorted(folder.glob("*/"))}
    if not any(found.values()):
        print(f"{folder} holds no prompts")
    for model, files in found.items():
        if not files:  # perhaps another program's folder
            continue
        index, size, used = PromptIndex(), 0.0, 0.0
        for file in files:
            with suppress(FileNotFoundError, ValueError):  # dropped just now; another version's
                status = file.stat()
                size, used = size + status.st_size / 2**20, max(used, status.st_mtime)
                index.add(StoredFile.of(file, 0))
        count = index.num_texts
        if resolved.words == ("list",):
            last = time.strftime("%Y-%m-%d %H:%M", time.localtime(used))
            print(f"{count:6} prompts {size:9.1f} MiB  last used {last}  {model.name}")
        else:
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
    takes=("cache_disk_path",),
    usage=USAGE,
    run=run,
)
