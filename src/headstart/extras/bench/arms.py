"""Ways to answer: settings of one server of ours, and other servers."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headstart.app.cli.arguments import LLAMA_SERVERS, PREFIX
from headstart.app.cli.resolve import Resolved
from headstart.app.cli.settings import as_arguments, text_of
from headstart.extras.bench.client import HEADSTART, TENANT_HEADER, Client, running
from headstart.extras.bench.comparison import OTHER
from headstart.types.errors import ConfigError, HeadstartError

_KEY = "bench"

Fields = Mapping[str, Any]
"""Fields of every request of an arm."""


def read_settings(text: str) -> dict[str, Fields]:
    """Parse arms from "@8;suffix@4;auto:suffix": speculators, if named, and a fixed length.

    Raises:
        ConfigError: it is malformed.
    """
    arms: dict[str, Fields] = {}
    for name in filter(None, (part.strip() for part in text.split(";"))):
        found = re.fullmatch(r"auto:([^:@]+)|([^:@]*)@(0*[1-9][0-9]*)", name)
        if found is None:
            raise ConfigError(
                f"--settings names {name!r}; write @LENGTH, SPECULATORS@LENGTH or "
                "auto:SPECULATORS, as in @8;suffix@4;auto:suffix"
            )
        auto, fixed, length = found.groups()
        types = auto or fixed
        fields = {"mode": "fixed", "n_max": int(length)} if length else {"mode": "auto"}
        named = {"types": types.split(",")} if types else {}
        arms[name if types else f"fixed {length}"] = {"speculative": fields | named}
    return arms


def open_url(url: str, key: str) -> dict[str, Client]:
    """A server that runs already, with the first model that it has."""
    client = Client(url.rstrip("/").removesuffix("/v1"), key)
    listed = (client.get("/v1/models") or {}).get("data") or [{}]
    return {"server": Client(client.url, key, {"model": listed[0].get("id", "default")})}


def open_server(resolved: Resolved, slots: int, folder: Path, stack: ExitStack) -> Client:
    """Start Headstart with the given flags; it runs until the stack is closed.

    Control's learning starts empty and is discarded, unless a flag names its file.

    All our arms share it, so that one model is loaded. Each arm is a separate tenant, without
    access to prompts and past answers of others.
    """
    values = resolved.values
    if values["models_preset"] and not (values["model"] or values["hf_repo"]):
        raise ConfigError(
            f"--models-preset {values['models_preset']} lists models; name the one to measure with "
            "--model or --hf-repo"
        )
    left_out = {"api_key", "spec", "models_preset"}
    if resolved.origins["cache_disk"] != "flag":  # `running` starts without prompts on the disk
        left_out.add("cache_disk")
    flags, variables = as_arguments(
        (one, text_of(values[one.name]))
        for one in resolved.settings
        if one.part and resolved.origins[one.name] != "default" and one.name not in left_out
    )
    prefixes, cache = (PREFIX, LLAMA_SERVERS), PREFIX + "CACHE"
    environment = {  # whose settings are among the flags, if they apply
        name: text
        for name, text in os.environ.items()
        if name == cache or not name.startswith(prefixes)
    }
    environment |= variables
    command = [*HEADSTART, "serve", *flags, "--api-key", _KEY]
    command += ["--tenant-header", TENANT_HEADER, "--log-level", "warning", "--spec", "auto"]
    if resolved.origins["parallel"] == "default":
        command += ["--parallel", str(slots)]
    if values["kv_unified"]:  # it would be off with --parallel and --context
        command += ["--kv-unified"]
    if resolved.origins["spec_state"] == "default":
        command += ["--spec-state", str(folder / "state.json")]
    return stack.enter_context(running(command, folder / "server.log", _KEY, environment))


def open_others(commands: str, folder: Path, stack: ExitStack) -> dict[str, Client]:
    """Other servers by name: "other", or "other 1" and so on.

    Raises:
        HeadstartError: one does not start.
    """
    found: Sequence[str] = [part for part in commands.split(";") if part.strip()]
    clients = {}
    for number, command in enumerate(found, 1):
        name = OTHER if len(found) == 1 else f"{OTHER} {number}"
        try:
            log = folder / f"{name}.log"
            clients[name] = stack.enter_context(running(shlex.split(command), log))
        except (OSError, HeadstartError) as error:
            raise HeadstartError(f"--against {command.strip()!r}: {error}") from error
        print(f"{name}: {command.strip()}", file=sys.stderr)
    return clients
