"""`headstart cluster`: replicas on Ray Serve behind one address."""

from __future__ import annotations

import logging

from headstart.app.cli.command import Command, read_flags
from headstart.app.cli.resolve import Resolved
from headstart.app.cli.settings import all_settings
from headstart.extras.cluster.options import SERVER_SETTINGS, ClusterOptions
from headstart.types.errors import ConfigError

OF_REPLICAS = "--"


def run(resolved: Resolved, words: list[str]) -> int:
    """Serve until stopped; return the exit code."""
    at = words.index(OF_REPLICAS) if OF_REPLICAS in words else len(words)
    if at:
        word, own = words[0], "flags of headstart serve"
        raise ConfigError(f"unexpected argument {word!r}; {own} come after {OF_REPLICAS}")
    options, server, arguments = resolved.own(ClusterOptions), resolved.config().server, words[1:]
    read_flags("serve", "", all_settings(), arguments)[0].config()  # raises for wrong ones

    from headstart.extras.cluster import deploy

    logging.basicConfig(level=server.log_level.upper())
    deploy.run(options, server, arguments, _announce)
    return 0


def _announce(url: str) -> None:
    print(f"Headstart listens on {url}. Ray starts replicas as they are needed.", flush=True)


COMMAND = Command(
    name="cluster",
    about=(
        "Start replicas of a server on a Ray cluster, as many as the load needs, and pass "
        "requests to them. Flags after -- are those of headstart serve, for every replica; files "
        "that they name must be on every machine. docs/cluster.md says how to join machines, and "
        "what must not be exposed."
    ),
    options=ClusterOptions,
    parts=("server",),
    shared=SERVER_SETTINGS,
    usage="[flags] -- [flags of headstart serve]",
    run=run,
)
