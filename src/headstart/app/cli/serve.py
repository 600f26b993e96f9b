"""`headstart serve`: the server."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

from headstart.app.cli.command import Command
from headstart.app.cli.models import is_router, read_models
from headstart.app.cli.resolve import Resolved
from headstart.app.hub import Hub
from headstart.app.model_files import drafters_wanted
from headstart.app.process import Parent
from headstart.types.errors import HeadstartError


def run(resolved: Resolved, *, has_demo: bool = True) -> int:
    """Serve until stopped; return the exit code."""
    config = resolved.config()
    if is_router(resolved, has_demo=has_demo):  # none is loaded in this process
        from headstart.gateway.router.serve import serve

        store = Hub(config.model, os.environ, drafters_wanted(config))
        return serve(config, lambda: read_models(resolved), store, resolved.in_force())

    from headstart.app import assemble

    parent = Parent.of(os.environ)
    try:
        return assemble.serve(config, resolved.in_force(), parent)
    except HeadstartError as error:
        parent.tell("failed", message=str(error))
        raise


COMMAND = Command(
    name="serve",
    about=(
        "Serve a GGUF model over HTTP, with the APIs of llama-server and OpenAI, and draft where "
        "it pays. Without --model it serves the small embedded demo model, or with --models-dir, "
        "--models-preset or --models-max several models, each in processes of its own.\n\n"
        "  headstart serve -m model.gguf -md draft.gguf\n"
        "  headstart serve -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 16384"
    ),
    takes=None,
    run=run,
)
AS_LLAMA_SERVER = replace(COMMAND, run=partial(run, has_demo=False))
