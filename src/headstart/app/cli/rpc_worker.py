"""`headstart rpc-worker`: compute part of a model for a server on another machine."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from headstart.app.cli.flags import read_flags
from headstart.app.cli.settings import settings_of
from headstart.config import check_ranges, option

ABOUT = (
    "Compute part of a model for a server that was started with --rpc HOST:PORT, one server at a "
    "time. The protocol is llama.cpp's: it has neither passwords nor encryption, and who reaches "
    "the port can read and write this process's memory. Use it in a private network only "
    "(docs/rpc.md)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcWorkerOptions:
    """Where to listen, and what to compute with."""

    host: str = option("127.0.0.1", "address to listen on: one of a private network")
    port: int = option(
        50052, "port; each engine needs a worker with one of its own", "-p", least=1, most=65535
    )
    device: str | None = option(
        None,
        "devices to compute with, by name and separated by commas (see `headstart devices`); "
        "default: all GPUs, or else the CPU",
    )
    threads: int | None = option(
        None, "CPU threads; default: physical cores", least=1, words={"-1": None}
    )
    cache: str | None = option(
        None, "folder for weights, so that they are not sent again at the next start"
    )

    def __post_init__(self) -> None:
        check_ranges(self)


def run(argv: Sequence[str]) -> int:
    """Compute until the process is ended; return the exit code."""
    resolved, print_config = read_flags(
        "rpc-worker", ABOUT, list(settings_of(RpcWorkerOptions)), argv
    )
    options = resolved.own(RpcWorkerOptions)
    if print_config:
        print(resolved.describe())
        return 0

    from headstart.app import remote

    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # Python does not run while libllama serves
    return remote.serve_worker(
        options.host, options.port, options.device, options.threads, options.cache
    )
