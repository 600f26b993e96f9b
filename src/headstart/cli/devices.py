"""`headstart devices`: what libllama can compute on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headstart.cli.flags import read_flags
from headstart.cli.settings import all_settings

if TYPE_CHECKING:
    from rich.console import Console

    from headstart.engine.fit import Fitted

ABOUT = (
    "List the devices that --device and --draft-device accept, with their memory. With --model, or "
    "--hf-repo, also what that model would take of each, as it would be served with these flags."
)
_PARTS = ("model", "engine", "draft_engine", "scheduler", "speculation")


def run(argv: Sequence[str]) -> int:
    """Print the table; return the exit code."""
    resolved, _ = read_flags("devices", ABOUT, all_settings(_PARTS), argv)

    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from headstart import assemble

    table = Table(box=SIMPLE)
    for heading in ("name", "type", "description"):
        table.add_column(heading)
    for heading in ("free", "total"):
        table.add_column(heading, justify="right")
    config = resolved.config()
    for device in assemble.list_devices(config.engine):
        row = (device.name, device.kind, device.description)
        table.add_row(*row, _gib(device.free_bytes), _gib(device.total_bytes))
    console = Console()
    console.print(table)
    if config.model.model or config.model.hf_repo:
        _print_needs(console, assemble.fit_memory(config))
    return 0


def _print_needs(console: Console, fitted: Fitted) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column("needed of")
    for heading in ("weights", "cache", "computing", "sum"):
        table.add_column(heading, justify="right")
    for name, use in fitted.uses.items():
        sizes = (use.weights, use.cache, use.compute, use.total)
        table.add_row(name, *(_mib(size) for size in sizes))
    console.print(table)
    console.print(f"{fitted.config.context} tokens of context")
    for remark in fitted.remarks:
        console.print(remark)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes else "-"
