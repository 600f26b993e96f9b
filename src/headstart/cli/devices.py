"""`headstart devices`: what libllama can compute on."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.cli.flags import read_flags

ABOUT = "List the devices that --device and --draft-device accept, with their memory."


def run(argv: Sequence[str]) -> int:
    """Print the table; return the exit code."""
    read_flags("devices", ABOUT, (), argv)

    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from headstart import assemble

    table = Table(box=SIMPLE)
    for heading in ("name", "type", "description"):
        table.add_column(heading)
    for heading in ("free", "total"):
        table.add_column(heading, justify="right")
    for device in assemble.list_devices():
        row = (device.name, device.kind, device.description)
        table.add_row(*row, _gib(device.free_bytes), _gib(device.total_bytes))
    Console().print(table)
    return 0


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes else "-"
