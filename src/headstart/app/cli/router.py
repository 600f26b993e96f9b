"""`headstart router`: several servers behind one address."""

from __future__ import annotations

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.gateway.balancer.options import SERVER_SETTINGS, BalancerOptions


def run(resolved: Resolved) -> int:
    """Route until stopped; return the exit code."""
    from headstart.gateway.balancer.app import serve

    serve(resolved.own(BalancerOptions), resolved.config())
    return 0


COMMAND = Command(
    name="router",
    about=(
        "Pass requests to several servers, each to the one where it is expected to be answered "
        "first: this depends on its queue and on the part of the prompt that it has cached. "
        "Backends are headstart serve or llama-server, with one model."
    ),
    options=BalancerOptions,
    takes=("log", *SERVER_SETTINGS),
    run=run,
)
