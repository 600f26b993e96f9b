"""`headstart devices`: what libllama can compute on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.config import SchedulerConfig, option

if TYPE_CHECKING:
    from headstart.engine.devices import Device
    from headstart.engine.fit import Fitted

# what decides how much memory a model needs
ENGINE_PARTS = ("model", "engine", "draft_engine", "scheduler", "speculation", "images")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesOptions:
    """Options of the output."""

    json: bool = option(False, "print JSON, for programs")
    free_memory: str | None = option(
        None,
        "with a model: MiB to count as free instead of what is, of main memory or by device: "
        "16000, or main=16000,CUDA0=22000",
    )


def run(resolved: Resolved) -> int:
    """Print the table; return the exit code."""
    options, config = resolved.own(DevicesOptions), resolved.config()
    has_model = bool(config.model.model or config.model.hf_repo)

    from headstart.app import assemble
    from headstart.gateway.router.pooled_model import parse_memory

    devices = assemble.list_devices(config.engine)
    free = parse_memory(options.free_memory, "--free-memory")
    fitted = assemble.fit_memory(config, free) if has_model else None
    if options.json:
        print(json.dumps(_facts(devices, fitted, config.scheduler)))
        return 0
    print(tables(devices, fitted))
    return 0


def _facts(
    devices: Sequence[Device], fitted: Fitted | None, scheduler: SchedulerConfig
) -> dict[str, Any]:
    """The contents of the tables, in bytes."""
    names = ("name", "kind", "description", "free_bytes", "total_bytes")
    facts: dict[str, Any] = {
        "devices": [{name: getattr(device, name) for name in names} for device in devices]
    }
    if fitted is not None:
        config = fitted.config
        facts |= {
            "needs": {name: use.total for name, use in fitted.uses.items()},
            "free": dict(fitted.free),
            "usable": dict(fitted.usable),
            "settings": {
                "context": config.context,
                "gpu_layers": config.gpu_layers,
                "n_cpu_moe": config.n_cpu_moe,
                # with a context given its default would depend on --parallel
                "kv_unified": scheduler.kv_unified,
            },
            "remarks": list(fitted.remarks),
        }
    return facts


def tables(devices: Sequence[Device], fitted: Fitted | None = None) -> str:
    """The devices, and what a model needs of them."""
    rows = [
        (one.name, one.kind, one.description, _gib(one.free_bytes), _gib(one.total_bytes))
        for one in devices
    ]
    found = _table(("name", "type", "description", "free", "total"), *rows, num_left=3)
    if fitted is None:
        return found
    uses = [
        (name, *(f"{n / 2**20:.0f} MiB" for n in (use.weights, use.cache, use.compute, use.total)))
        for name, use in fitted.uses.items()
    ]
    needed = _table(("needed of", "weights", "cache", "computing", "sum"), *uses, num_left=1)
    context = f"{fitted.config.context} tokens of context"
    return "\n".join([found, "", needed, "", context, *fitted.remarks])


def _table(*rows: tuple[str, ...], num_left: int) -> str:
    """The first columns are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = list[str]()
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([*left[:num_left], *right[num_left:]]).rstrip())
    return "\n".join(lines)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes else "-"


COMMAND = Command(
    name="devices",
    about=(
        "List the devices that --device and --draft-device accept, with their memory. With "
        "--model or --hf-repo, also the memory that this model would take of each, served with "
        "these flags."
    ),
    options=DevicesOptions,
    takes=None,  # a router asks with the flags of the model's server
    run=run,
)
