"""`headstart bench`: off, fixed draft lengths and auto on the same questions, on this machine."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from headstart.app.cli.command import Command
from headstart.app.cli.devices import ENGINE_PARTS
from headstart.app.cli.resolve import Resolved
from headstart.app.cli.settings import settings_of
from headstart.config import option
from headstart.extras.bench import steps
from headstart.extras.bench.arms import open_others, open_server, open_url, read_settings
from headstart.extras.bench.client import Answer, Client
from headstart.extras.bench.comparison import AUTO, OFF, Cell, Scores, compare
from headstart.extras.bench.library import WORKLOADS, Question, make_questions, read_questions
from headstart.extras.bench.tables import facts, tables
from headstart.types.errors import ConfigError

# the settings that a measured server takes over; not how it is reached, nor what it keeps
SETTINGS = (
    *ENGINE_PARTS, "chat", "sampling", "api_key", "chat_template", "chat_template_file",
    "image_urls", "media_path", "max_body_mb", "models_preset",
)  # fmt: skip
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Extent of the measurement."""

    users: str | None = option(
        None, "requests at the same time; table lines for each number. Default: 1,4, or 1 and -np"
    )
    workloads: str | None = option(
        None, f"of {', '.join(WORKLOADS)}; default: edit,json,chat,continue,agent"
    )
    temperatures: str = option("0,0.8", "temperatures, separated by commas")
    prompts: str | None = option(
        None, "file with a prompt a line, or a request body as JSON, instead of the workloads"
    )
    remember: bool = option(False, "let drafts be copied from earlier answers to the same question")
    tokens: int = option(128, "most tokens of an answer", least=1)
    rate: float = option(0.0, "users arriving per second, at random times; 0: together", least=0)
    settings: str | None = option(
        None,
        "what auto is compared with, besides off: @LENGTH, SPECULATORS@LENGTH or auto:SPECULATORS; "
        "default: @4;@8;@16",
    )
    error: float = option(0.03, "error of a ratio, as printed, at which a line is finished")
    seconds: float = option(
        600.0,
        "begin no further round after this; each line gets three, above temperature 0 of four "
        "answers for each user",
        least=0,
    )
    quick: bool = option(
        False, "one user, edit and chat, one fixed length, unless set; a minute or two"
    )
    server_url: str | None = option(
        None,
        "measure this server of OpenAI's API, and nothing else; --api-key is its key",
        "--url",
    )
    against: str | None = option(
        None,
        "command lines of other servers to take turns with, separated by semicolons; --port N is "
        "appended to each",
    )
    json: bool = option(False, "print everything as JSON")


def run(resolved: Resolved) -> int:
    """Measure and print; return the exit code."""
    if resolved.words == ("steps",):
        for one in settings_of(BenchOptions):
            if resolved.origins[one.name] == "flag":
                raise ConfigError(f"headstart bench steps takes no {one.flag}; leave it out")
        return steps.run(resolved.config())
    if resolved.words:
        raise ConfigError(f"unexpected argument {resolved.words[0]!r}; the only one is steps")
    options = resolved.own(BenchOptions)
    cells = read_cells(options, resolved.config().scheduler.parallel, resolved.origins["parallel"])
    lengths = "@8" if options.quick else "@4;@8;@16"
    settings = read_settings(lengths if options.settings is None else options.settings)
    questions = None if options.prompts is None else read_questions(Path(options.prompts))
    most_users = max(cell.users for cell in cells)
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if options.server_url is not None:
            server = None
            clients = open_url(options.server_url, str(resolved.values["api_key"] or ""))
        else:
            server = open_server(resolved, most_users, folder, stack)
            arms = {OFF: {"speculative": {"mode": "off"}}, **settings, AUTO: {}}
            clients = {name: replace(server, fields=fields) for name, fields in arms.items()}
        clients |= open_others(options.against or "", folder, stack)
        for name, client in clients.items():  # connects, and loads weights; not counted
            asked = make_questions("edit", most_users, "warm")
            client.ask_all(asked, tenants=repeat(name), temperature=0.7, max_tokens=32)
        scores = measure(clients, cells, questions, options)
        control = {} if server is None else server.control()
    print(
        json.dumps({"lines": facts(scores), "control": control}) if options.json else tables(scores)
    )
    return 0


def measure(
    clients: dict[str, Client],
    cells: Sequence[Cell],
    questions: Sequence[Question] | None,
    options: BenchOptions,
) -> Scores:
    """Let all arms answer; show progress on a terminal."""
    times = Counter[tuple[str, str]]()  # by arm and question

    def play(arm: str, cell: Cell, number: int) -> tuple[list[Answer], dict[str, float]]:
        if sys.stderr.isatty():
            print(f"\rround {number + 1}: {arm}, {cell}\x1b[K", end="", file=sys.stderr)
        fields: dict[str, Any] = {"temperature": cell.temperature, "max_tokens": options.tokens}
        is_drawn = cell.temperature > 0.0 and options.against is not None
        count = cell.users * (4 if is_drawn else 1)  # programs draw different texts
        first, tenants = number * count, [arm] * count
        if questions is None:
            asked = make_questions(cell.workload, count, (*cell, first))
        else:  # the next ones of the file, which is repeated
            asked = [questions[(first + i) % len(questions)] for i in range(count)]
        if not options.remember:  # what comes again is asked by another tenant
            for i, question in enumerate(map(repr, asked)):
                if num_before := times[arm, question]:
                    tenants[i] = f"{arm}, {num_before}"
                    if questions is not None:
                        fields["cache_prompt"] = False
                times[arm, question] += 1
        fields |= {"users": cell.users, "rate": options.rate, "seed": first}
        before = clients[arm].counters()
        answers = clients[arm].ask_all(asked, tenants=tenants, **fields)
        counted = clients[arm].counters()
        return answers, {name: n - before.get(name, 0.0) for name, n in counted.items()}

    seconds = min(options.seconds, 60.0) if options.quick else options.seconds
    scores = compare(list(clients), cells, play, error=options.error, seconds=seconds)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return scores


def read_cells(options: BenchOptions, parallel: int, origin: str) -> list[Cell]:
    """The cells to measure.

    Raises:
        ConfigError: a flag has an unusable value.
    """
    if options.error <= 0.0:
        raise ConfigError("--error must be above 0")
    if options.prompts is not None:
        names = ["prompts"]
    else:
        usual = "edit,chat" if options.quick else "edit,json,chat,continue,agent"
        names = (options.workloads or usual).split(",")
        if unknown := [name for name in names if name not in WORKLOADS]:
            raise ConfigError(f"--workloads names {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    default = "1,4" if origin == "default" else ",".join(dict.fromkeys(("1", str(parallel))))
    asked = options.users or ("1" if options.quick else default)
    users = _numbers("--users", asked, 1)
    temperatures = _numbers("--temperatures", options.temperatures, 0.0)
    return [Cell(name, value, n) for n in users for name in names for value in temperatures]


def _numbers(flag: str, text: str, least: N) -> list[N]:
    kind, whole = type(least), "whole " * isinstance(least, int)
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(least <= value < math.inf for value in values):
        raise ConfigError(
            f"{flag} is {text!r} but must be {whole}numbers from {least:g} on, as in 1,4"
        )
    return values


COMMAND = Command(
    name="bench",
    about=(
        "Measure what drafts give on this machine: starts a server with these flags and asks it "
        "the same questions in turn with speculation off, with fixed draft lengths and as it "
        "chooses by itself, until the ratios are certain. headstart bench steps measures what a "
        "step costs by its rows, and from which acceptance drafts pay."
    ),
    options=BenchOptions,
    takes=SETTINGS,
    usage="[steps] [flags]",
    run=run,
)
