"""`headstart bench`: off, fixed draft lengths and auto on the same questions, on this machine."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.app.cli.command import Command
from headstart.app.cli.resolve import Resolved
from headstart.config import option
from headstart.extras.bench import steps
from headstart.extras.bench.client import Answer, Client, running
from headstart.extras.bench.comparison import AUTO, OFF, Cell, Score, Scores, best_fixed, compare
from headstart.extras.bench.library import WORKLOADS, Question, make_questions
from headstart.extras.bench.report import MeanRatio, quantile, table_head, table_row
from headstart.types.errors import ConfigError

FIXED_LENGTHS = (4, 8, 16)
QUICK_SECONDS = 60.0
# of the server's settings: bench sets these itself
OWN_SETTINGS = ("api_key", "api_key_file", "host", "port", "spec", "log_level", "page")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure."""

    users: str = option("1,4", "requests at the same time; a table line for each number")
    workloads: str = option("edit,json,chat,continue,agent", f"of {', '.join(WORKLOADS)}")
    temperatures: str = option("0,0.8", "temperatures, separated by commas")
    prompts: str | None = option(
        None, "file with a prompt a line, or a request body as JSON, instead of the workloads"
    )
    tokens: int = option(256, "most tokens of an answer")
    error: float = option(0.03, "standard error of a ratio at which a line is finished")
    seconds: float = option(600.0, "begin no further round after this; each line gets three rounds")
    quick: bool = option(
        False, "off and auto only, one user, edit and chat, a minute after the server's start"
    )
    url: str | None = option(None, "measure this server, of any kind, and nothing else")
    against: str | None = option(
        None, "command line of another server to take turns with; --port N is appended to it"
    )
    json: bool = option(False, "print everything as JSON")


def run(resolved: Resolved, words: list[str]) -> int:
    """Measure and print; return the exit code."""
    if words == ["steps"]:
        return steps.run(resolved.config())
    if words:
        raise ConfigError(f"unexpected argument {words[0]!r}; the only one is steps")
    options = resolved.own(BenchOptions)
    cells = read_cells(options)
    questions = None if options.prompts is None else read_prompts(Path(options.prompts))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        most_users = max(cell.users for cell in cells)
        clients = start(resolved, options, most_users, Path(folder), stack)

        def play(arm: str, cell: Cell, number: int) -> list[Answer]:
            if sys.stderr.isatty():
                print(f"\rround {number + 1}: {arm}, {cell}\x1b[K", end="", file=sys.stderr)
            asked = choose(questions, cell, number)
            fields = {"temperature": cell.temperature, "max_tokens": options.tokens}
            return clients[arm].ask_all(asked, **fields)

        for client in clients.values():  # connections, caches, weights in memory
            client.ask_all(make_questions("edit", most_users, 999), temperature=0.7, max_tokens=32)
        seconds = QUICK_SECONDS if options.quick else options.seconds
        scores = compare(list(clients), cells, play, error=options.error, seconds=seconds)
    print(json.dumps(facts(scores)) if options.json else table(scores))
    return 0


def read_cells(options: BenchOptions) -> list[Cell]:
    """What is measured.

    Raises:
        ConfigError: a flag that says nothing usable.
    """
    if options.tokens < 1 or options.error <= 0.0 or options.seconds < 0.0:
        raise ConfigError("--tokens, --error and --seconds must be above 0")
    if options.prompts is not None:
        names = ["prompts"]
    else:
        names = ["edit", "chat"] if options.quick else options.workloads.split(",")
        if unknown := [name for name in names if name not in WORKLOADS]:
            raise ConfigError(f"--workloads names {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    users = [1.0] if options.quick else _numbers("--users", options.users, 1)
    temperatures = _numbers("--temperatures", options.temperatures, 0)
    return [Cell(name, value, int(n)) for n in users for name in names for value in temperatures]


def _numbers(flag: str, text: str, least: float) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < least:
        raise ConfigError(f"{flag} is {text!r} but must be numbers from {least:g} on, as in 1,4")
    return values


def start(
    resolved: Resolved, options: BenchOptions, users: int, folder: Path, stack: ExitStack
) -> dict[str, Client]:
    """The arms by name; their servers run until the stack is closed.

    All arms of our own share one server, so that one model is loaded. Each has an API key of its
    own: prompts and past answers of one are not known to the others.
    """
    if options.url is not None:
        return {"server": Client(options.url.rstrip("/"))}
    arms: dict[str, Mapping[str, Any]] = {OFF: {"speculative": {"mode": "off"}}}
    for length in () if options.quick else FIXED_LENGTHS:
        arms[f"fixed {length}"] = {"speculative": {"mode": "fixed", "n_max": length}}
    arms[AUTO] = {}
    settings = folder / "settings.toml"
    settings.write_text("\n".join(resolved.given_lines(leave_out=OWN_SETTINGS)), "utf-8")
    keys = {name: f"bench-{number}" for number, name in enumerate(arms)}
    command = [sys.executable, "-m", "headstart", "serve", "--config", str(settings)]
    command += ["--api-key", ",".join(keys.values()), "--log-level", "warning", "--spec", "auto"]
    if resolved.origins["parallel"] == "default":
        command += ["--parallel", str(users)]
    url = stack.enter_context(running(command, folder / "server.log"))
    clients = {name: Client(url, keys[name], fields) for name, fields in arms.items()}
    if options.against is not None:
        command = shlex.split(options.against)
        clients["other"] = Client(stack.enter_context(running(command, folder / "other.log")))
    return clients


def read_prompts(file: Path) -> list[Question]:
    """A question a line.

    Raises:
        ConfigError: the file cannot be read, or has no line.
    """
    try:
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts: cannot read {file}: {error}") from None
    if not lines:
        raise ConfigError(f"--prompts: {file} is empty; write a prompt a line")
    return [_read_line(line) for line in lines]


def _read_line(line: str) -> Question:
    try:
        body = json.loads(line)
    except json.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        return Question((line,))
    return Question((), body.get("max_tokens") or 1024, is_raw="prompt" in body, body=body)


def choose(questions: Sequence[Question] | None, cell: Cell, number: int) -> list[Question]:
    """The questions of a round: fresh ones, or the next of a file, from its beginning again."""
    if questions is None:
        return make_questions(cell.workload, cell.users, 1000 * cell.users + number)
    first = number * cell.users
    return [questions[(first + i) % len(questions)] for i in range(cell.users)]


def table(scores: Scores) -> str:
    """A line per cell, and what it comes to."""
    arms = list(next(iter(scores.values())))
    first, own = arms[0], AUTO if AUTO in arms else arms[-1]
    heads = ["workload", "temp", "users", f"{first}, tokens/s"]
    if len(arms) > 1:
        heads += ["best by hand", f"{own} / {first}", f"{own} / best by hand"]
    heads += ["other / off"] * ("other" in arms)
    heads += ["first token, ms", "longest wait, ms", "accepted of drafted", "tokens a step"]
    lines = [table_head(*heads)]
    lines += [table_row(*_cells_of(cell, by_arm, own)) for cell, by_arm in scores.items()]
    if len(arms) > 1:
        lines += ["", *_verdicts(scores, own)]
    return "\n".join(lines)


def _cells_of(cell: Cell, scores: Mapping[str, Score], own: str) -> Iterator[object]:
    first, score = next(iter(scores.values())), scores[own]
    yield from (cell.workload, f"{cell.temperature:g}", cell.users, f"{first.rate:.1f}")
    if len(scores) > 1:
        best = best_fixed(scores)
        yield from (best, score.relative_to(first), score.relative_to(scores[best]))
    if "other" in scores:
        yield scores["other"].relative_to(first)
    yield f"{1000 * quantile(score.first_seconds, 0.5):.0f}"
    yield f"{1000 * quantile(score.longest_waits, 0.99):.0f}"
    yield f"{score.num_accepted}/{score.num_drafted}"
    yield score.tokens_per_step


def _verdicts(scores: Scores, own: str) -> Iterator[str]:
    """What the ratios of all lines come to."""
    for name, base in (("off", lambda by_arm: OFF), ("best by hand", best_fixed)):
        pairs = [(by_arm[own], by_arm[base(by_arm)]) for by_arm in scores.values()]
        each = [a.relative_to(b) for a, b in pairs]
        mean = statistics.geometric_mean([estimate.mean for estimate in each])
        slower = sum(estimate.verdict == "slower" for estimate in each)
        yield (
            f"{own} / {name}: {mean:.2f} on average; slower in {slower} of {len(each)} lines, by "
            "more than two standard errors"
        )


def facts(scores: Scores) -> list[dict[str, Any]]:
    """Everything, JSON-ready."""
    return [
        {
            **cell._asdict(),
            "arms": {
                name: {
                    "tokens_per_second": score.rate,
                    "rates": score.rates,
                    "relative": _json(score.relative_to(next(iter(by_arm.values())))),
                    "first_token_seconds": score.first_seconds,
                    "longest_wait_seconds": score.longest_waits,
                    "draft_n": score.num_drafted,
                    "draft_n_accepted": score.num_accepted,
                    "tokens_per_step": score.tokens_per_step,
                }
                for name, score in by_arm.items()
            },
        }
        for cell, by_arm in scores.items()
    ]


def _json(estimate: MeanRatio) -> dict[str, float]:
    return {"mean": estimate.mean, "error": estimate.error}


COMMAND = Command(
    name="bench",
    about=(
        "Measure what drafts give on this machine: starts a server with these flags and asks it "
        "the same questions in turn with speculation off, with fixed draft lengths and as it "
        "chooses by itself, until the ratios are certain. headstart bench steps measures what a "
        "step costs by its rows, and from which acceptance drafts pay."
    ),
    options=BenchOptions,
    parts=None,
    usage="[steps] [flags]",
    run=run,
)
