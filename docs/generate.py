"""Write the reference tables docs/flags.md, docs/metrics.md and docs/errors.md from the code.

The table of speeds in README.md is made from docs/measured.json.

Run it after changing a setting, a metric or an error: `python docs/generate.py`. A test fails when
they are out of date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from headstart.app.cli import devices, generate, llama_server, router, verify
from headstart.app.cli.settings import Setting, all_settings
from headstart.extras.bench import command as bench
from headstart.extras.bench import tune
from headstart.extras.bench.comparison import Score, best_other
from headstart.extras.cluster import command as cluster
from headstart.extras.distill import command as distill
from headstart.extras.rpc import build, worker
from headstart.gateway.router.metrics import METRICS as ROUTER_METRICS
from headstart.server.errors import ANSWERS
from headstart.server.metrics import METRICS
from headstart.types import errors

FOLDER = Path(__file__).parent
SPEEDS_BEGIN, SPEEDS_END = "<!-- speeds: made by docs/generate.py -->", "<!-- end -->"
TEXTS = {"edit": "edits code", "continue": "free code"}
NOTE = "<!-- Made by docs/generate.py; do not edit. -->"


def pages() -> dict[str, str]:
    """File name -> content of every generated page."""
    return {
        "flags.md": flags_page(),
        "metrics.md": metrics_page(),
        "errors.md": errors_page(),
        "from-llama-server.md": llama_server_page(),
        "../README.md": with_speeds(FOLDER.parent / "README.md"),
    }


def with_speeds(path: Path) -> str:
    """A page, its table of speeds made from `headstart bench --against "llama-server ..." --json`.

    The first of the other servers is llama-server without drafts.
    """
    before, begin, rest = path.read_text("utf-8").partition(SPEEDS_BEGIN)
    _, end, after = rest.partition(SPEEDS_END)
    heads = ("users", "text", "temperature", "llama-server", "its `ngram-mod`", "Headstart off")
    rows = []
    for cell in json.loads((FOLDER / "measured.json").read_text("utf-8"))["lines"]:
        arms = {name: Score(rates=arm["rates"]) for name, arm in cell["arms"].items()}
        shown = [arms[name] for name in ("other 1", "other 2", "off", "auto")]
        best = arms[best_other(arms) or "off"]
        about = (str(cell["users"]), TEXTS[cell["workload"]], f"{cell['temperature']:g}")
        ratios = [str(arms["auto"].relative_to(one)) for one in (arms["off"], best)]
        rows.append((*about, *(f"{one.rate:.1f}" for one in shown), *ratios))
    more = ("Headstart", "of its off", "of llama-server's best")
    return before + begin + "\n".join(["", *_table((*heads, *more), rows), ""]) + end + after


def flags_page() -> str:
    """Every flag with its spellings, environment name, default and meaning."""
    lines = [
        "# Flags",
        NOTE,
        "",
        "A flag beats its environment variable (`HEADSTART_DRAFT_MAX` for `--draft-max`), which "
        "beats the config file",
        "(`--config FILE` or `HEADSTART_CONFIG`: TOML, keys as in the variables without "
        "`HEADSTART_`, in small letters), which",
        "beats the default. `headstart serve --print-config` shows every value and where it came "
        "from. A flag that is on or off",
        "has a `--no-` form.",
        "",
        "`HEADSTART_CACHE` is the folder for what the server learns (default: "
        "`~/.cache/headstart`). Any other `HEADSTART_` name is",
        "refused. llama-server's flags and variables are in "
        "[from-llama-server.md](from-llama-server.md).",
    ]
    titles = groupby(all_settings(), lambda one: one.title)
    for title, members in titles:
        lines += ["", f"## {title}", "", *_flag_table(members)]
    for module in (generate, verify, bench, tune, distill, router, cluster, devices, worker, build):
        own = [one for one in module.COMMAND.settings() if not one.part]
        lines += ["", f"## Only `headstart {module.COMMAND.name}`", "", *_flag_table(own)]
    return _page(lines)


TABLES = "<!-- From here on made by docs/generate.py; do not edit. -->"


def llama_server_page() -> str:
    """What is written by hand, then what becomes of each flag of llama-server."""
    by_hand = (FOLDER / "from-llama-server.md").read_text("utf-8").partition(TABLES)[0]
    settings = {name: one for one in all_settings() for name in one.spellings}
    works: list[tuple[str, ...]] = []
    accepted: list[tuple[str, ...]] = []
    refused: list[tuple[str, ...]] = []
    for flag in llama_server.flags():
        names = ", ".join(f"`{name}`" for name in (*flag.names, *flag.negatives))
        variable = f"`{flag.environment}`" if flag.environment else ""
        setting = next((settings[name] for name in flag.names if name in settings), None)
        if setting is not None:
            if setting.flag not in flag.names:
                works.append((names, variable, f"`{setting.flag}`"))
            continue
        for verdict in flag.verdicts:
            values = f"{' or '.join(f'`{v}`' for v in verdict.values)}: " if verdict.values else ""
            if verdict.kind == "sets":
                same = " ".join(f"`{name}={value}`" for name, value in verdict.settings.items())
                works.append((names, variable, f"{values}as {same}"))
            else:
                rows = accepted if verdict.kind == "accepted" else refused
                rows.append((names, variable, values + verdict.text))
    heading = ("flag", "variable")
    lines = [TABLES, "", "## Flags with another name or form", ""]
    lines += ["All flags that are not in these tables work as they are, and so do their variables."]
    lines += ["", *_table((*heading, "here ([flags.md](flags.md))"), works)]
    lines += ["", "## Flags that are accepted and change nothing", ""]
    lines += _table((*heading, "because"), _merged(accepted))
    lines += ["", "## Flags that are refused", ""]
    lines += _table((*heading, "why, and what to do"), _merged(refused))
    return by_hand + _page(lines)


def _merged(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """One row for all flags with the same text."""
    by_text: dict[str, list[tuple[str, str]]] = {}
    for names, variable, text in rows:
        by_text.setdefault(text, []).append((names, variable))
    return [
        ("; ".join(n for n, _ in flags), ", ".join(v for _, v in flags if v), text)
        for text, flags in by_text.items()
    ]


def _flag_table(settings: Iterable[Setting]) -> list[str]:
    rows: dict[tuple[str, str], list[str]] = {}  # flags with one default and meaning share a row
    for setting in settings:
        spellings = ", ".join(f"`{name}`" for name in (setting.flag, *setting.aliases))
        option = setting.option
        values = f" ({', '.join(option.choices)})" if option.choices else ""
        rows.setdefault((_shown(setting), option.help + values), []).append(spellings)
    cells = [(", ".join(names), *shown) for shown, names in rows.items()]
    return _table(("flag", "default", "meaning"), cells)


def _shown(setting: Setting) -> str:
    if setting.default is None:
        return ""
    return f"`{str(setting.default).lower() if setting.kind is bool else setting.default}`"


def metrics_page() -> str:
    """Every metric of /metrics with its kind, labels and meaning."""
    rows = [
        (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help)
        for one in METRICS
    ]
    intro = [
        "What `/metrics` reports. Names with `llamacpp:` are llama-server's, so its dashboards "
        "work.",
        "",
        "- Counts of tokens, seconds and requests move when a request ends, also by a cancel; one "
        "that fails adds to",
        "  `headstart_requests_failed_total` alone. Decodes, drafts and what a speculator counts "
        "move at every step.",
        "- The gauges of speed are averages since the start; llama-server's begin anew at every "
        "scrape. For the speed",
        "  of the last minutes divide two counters:",
        "  `rate(llamacpp:tokens_predicted_total[5m]) / "
        "rate(llamacpp:tokens_predicted_seconds_total[5m])`.",
        "- All start from 0 when the engine process was restarted, but for "
        "`headstart_engine_restarts_total`.",
    ]
    own = [
        (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help)
        for one in ROUTER_METRICS
    ]
    of_router = [
        "## Of a router",
        "",
        "`/metrics` of a server of several models without `?model=`:",
        "",
    ]
    columns = ("name", "kind", "labels", "meaning")
    pages = [*_table(columns, rows), "", *of_router, *_table(columns, own)]
    return _page(["# Metrics", NOTE, "", *intro, "", *pages])


def errors_page() -> str:
    """What HTTP clients see, then the exception tree, as errors.py draws it."""
    answers = [(str(status), f"`{type}`", when) for status, type, when in ANSWERS]
    http = [
        'Every error has the body `{"error": {"code": status, "message": "...", "type": "..."}}`; '
        "those of a route of",
        'Ollama\'s API have `{"error": "..."}`, and those of `/v1/messages` have Anthropic\'s '
        "form. In a stream that",
        "has begun, where the status is sent already, it is the last event.",
    ]
    rows = [
        (f"`{name}`", meaning)
        for name, meaning in re.findall(r"^ +(\w+) {2,}(.+)$", errors.__doc__ or "", re.M)
    ]
    raised = (
        "What Headstart raises on purpose. All derive from `headstart.types.errors.HeadstartError`."
    )
    lines = [
        "# Errors",
        NOTE,
        "",
        "## Over HTTP",
        "",
        *http,
        "",
        *_table(("status", "type", "when"), answers),
    ]
    lines += ["", "## In Python", "", raised, "", *_table(("error", "meaning"), rows)]
    return _page(lines)


def _table(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = [heading, ("---",) * len(heading), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]


def _page(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name, content in pages().items():
        (FOLDER / name).write_text(content, "utf-8")
