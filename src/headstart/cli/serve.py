"""`headstart serve`: the server."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.cli.flags import read_flags
from headstart.cli.settings import all_settings

ABOUT = (
    "Serve a GGUF model over HTTP, as llama-server and OpenAI do, guessing ahead where it pays. "
    "Without --model it serves the small embedded demo model."
)


def run(argv: Sequence[str]) -> int:
    """Serve until stopped; return the exit code."""
    resolved, print_config = read_flags("serve", ABOUT, all_settings(), argv)
    config = resolved.config()
    if print_config:
        print(resolved.describe())
        return 0

    from headstart import assemble

    return assemble.serve(config, resolved.in_force())
