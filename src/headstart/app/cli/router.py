"""`headstart router`: several servers behind one address."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from headstart.app.cli.flags import read_flags
from headstart.app.cli.settings import Setting, all_settings, settings_of

ABOUT = (
    "Pass requests to several servers, each to the one where it is expected to be answered first: "
    "its queue, the part of the prompt that it has not read before, and what its corpora know of "
    "the text decide. Backends are headstart serve or llama-server, with one model."
)


def settings() -> list[Setting]:
    """What can be set."""
    from headstart.gateway.balancer.options import SERVER_SETTINGS, RouterOptions

    shared = [one for one in all_settings(("server", "log")) if _is_shared(one, SERVER_SETTINGS)]
    return [*settings_of(RouterOptions), *shared]


def _announce(num_backends: int, url: str) -> None:
    print(f"Headstart listens on {url}. It passes requests to {num_backends} servers.", flush=True)


def _is_shared(setting: Setting, names: Sequence[str]) -> bool:
    return setting.part == "log" or setting.name in names


def run(argv: Sequence[str]) -> int:
    """Route until stopped; return the exit code."""
    from headstart.gateway.balancer.options import RouterOptions

    resolved, print_config = read_flags("router", ABOUT, settings(), argv)
    options, config = resolved.own(RouterOptions), resolved.config()
    if print_config:
        print(resolved.describe())
        return 0

    from headstart.config.logs import start_logging
    from headstart.gateway.balancer.run import serve

    start_logging(config)
    serve(options, config, partial(_announce, len(options.urls())))
    return 0
