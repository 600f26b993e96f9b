"""`headstart cluster`: replicas on Ray Serve behind one address."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headstart.app.cli.flags import read_flags, read_words_and_flags
from headstart.app.cli.settings import Setting, all_settings, settings_of

ABOUT = (
    "Start replicas of a server on a Ray cluster, as many as there is work for, and pass requests "
    "to them. What stands behind -- are flags of headstart serve, for every replica; files that "
    "they name must be on every machine. docs/cluster.md says how to join machines, and what must "
    "not be exposed."
)
USAGE = "[flags] -- [flags of headstart serve]"
OF_REPLICAS = "--"


def settings() -> list[Setting]:
    """What can be set for the cluster itself."""
    from headstart.extras.cluster.options import SERVER_SETTINGS, ClusterOptions

    shared = [one for one in all_settings(("server",)) if one.name in SERVER_SETTINGS]
    return [*settings_of(ClusterOptions), *shared]


def run(argv: Sequence[str]) -> int:
    """Serve until stopped; return the exit code."""
    from headstart.extras.cluster.options import ClusterOptions

    at = list(argv).index(OF_REPLICAS) if OF_REPLICAS in argv else len(argv)
    own, arguments = argv[:at], argv[at + 1 :]
    resolved, print_config, words = read_words_and_flags("cluster", ABOUT, settings(), own, USAGE)
    if words:
        from headstart.types.errors import ConfigError

        raise ConfigError(
            f"unexpected argument {words[0]!r}; flags of headstart serve come after --"
        )
    options, server = resolved.own(ClusterOptions), resolved.config().server
    read_flags("serve", "", all_settings(), arguments)[0].config()  # wrong ones are told here
    if print_config:
        print(resolved.describe())
        return 0

    from headstart.extras.cluster import deploy

    logging.basicConfig(level=server.log_level.upper())
    deploy.run(options, server, arguments, _announce)
    return 0


def _announce(url: str) -> None:
    print(f"Headstart listens on {url}. Ray starts replicas as they are needed.", flush=True)
