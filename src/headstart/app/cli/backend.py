"""`headstart backend`: which libllama is used, and downloading one."""

from __future__ import annotations

import os

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.types.errors import ConfigError


def run(resolved: Resolved, words: list[str]) -> int:
    """Show the libllama in use, or install one; return the exit code."""
    from headstart.app import backends
    from headstart.app.cards import find_card
    from headstart.engine.find_library import find, installed_folder

    if not words:
        print(find(os.environ) or "there is no libllama; run: headstart backend install")
        return 0
    card = find_card()
    backend = words[1] if len(words) > 1 else card.backend if card else "cpu"
    if words[0] != "install" or len(words) > 2 or backend not in backends.NAMES:
        raise ConfigError(f"headstart backend install takes one of {', '.join(backends.NAMES)}")
    folder = installed_folder(os.environ)
    print(f"installing {backend}" + (f" for {card.name}" if card else ""), flush=True)
    backends.install(backend, folder)
    print(f"installed {folder}")
    return 0


COMMAND = Command(
    name="backend",
    about=(
        "Show which libllama is used. With install, download a prebuilt one for this machine: for "
        "the card that is found, or for the backend that is named."
    ),
    run=run,
    usage="[install [cpu|cuda|vulkan|metal|rocm]]",
)
