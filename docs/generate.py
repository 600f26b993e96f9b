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
from typing import Any

from headstart.app.cli import llama_server
from headstart.app.cli.settings import Setting, all_settings
from headstart.extras.bench.comparison import OTHER_SERVER, Score, bases
from headstart.gateway.router.metrics import METRICS as ROUTER_METRICS
from headstart.server.errors import ANSWERS
from headstart.server.metrics import METRICS, Metric
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
    heads = ("users", "text", "temperature", "llama-server", "its `ngram-mod`", "our baseline")
    rows = []
    for cell in json.loads((FOLDER / "measured.json").read_text("utf-8"))["lines"]:
        arms = {name: Score(rates=arm["rates"]) for name, arm in cell["arms"].items()}
        shown = [arms[name] for name in ("other 1", "other 2", "off", "auto")]
        best = arms[bases(arms)[OTHER_SERVER]]
        about = (str(cell["users"]), TEXTS[cell["workload"]], f"{cell['temperature']:g}")
        ratios = [str(arms["auto"].relative_to(one)) for one in (arms["off"], best)]
        rows.append((*about, *(f"{one.rate:.1f}" for one in shown), *ratios))
    more = ("Headstart", "of our baseline", "of llama-server's best")
    return before + begin + "\n".join(["", *_table((*heads, *more), rows), ""]) + end + after


def flags_page() -> str:
    """Every flag of a server with its spellings, meaning and default."""
    lines = [
        "# Flags",
        NOTE,
        "",
        "The flags of `headstart serve`; other commands take most of them, too, and list "
        "their own in `--help`.",
        "",
        "A flag beats its environment variable (`HEADSTART_DRAFT_MAX` for `--draft-max`), which "
        "beats the config file",
        "(`--config FILE` or `HEADSTART_CONFIG`), which beats the default, here in brackets "
        "(without: off, 0 or nothing).",
        "`headstart serve --print-config` shows every value with its origin. A flag that is on or "
        "off has a `--no-` form.",
        "",
        "The config file is TOML. Its keys are flags without their leading dashes, or names of "
        "environment variables: `ctx-size`, `ctx_size`",
        "and `LLAMA_ARG_CTX_SIZE` are one setting.",
        "",
        "`HEADSTART_CACHE` is the [cache folder](install.md#with-pip-pipx-or-uv). llama-server's "
        "flags and variables",
        "are in [from-llama-server.md](from-llama-server.md).",
    ]
    titles = groupby(all_settings(), lambda one: one.title)
    for title, members in titles:
        lines += ["", f"## {title}", "", *_flag_table(members)]
    return _page(lines)


TABLES = "<!-- From here on made by docs/generate.py; do not edit. -->"


def llama_server_page() -> str:
    """What is written by hand, then what becomes of each flag of llama-server."""
    by_hand = (FOLDER / "from-llama-server.md").read_text("utf-8").partition(TABLES)[0]
    settings = {name for one in all_settings() for name in one.spellings}
    # kind of verdict -> text -> flags
    rows: dict[str, dict[str, list[str]]] = {"sets": {}, "accepted": {}, "refused": {}}
    for flag in llama_server.flags():
        if settings.intersection(flag.names):
            continue
        texts: dict[str, list[str]] = {}
        for verdict in flag.verdicts:
            values = f"{' or '.join(f'`{v}`' for v in verdict.values)}: " if verdict.values else ""
            same = " ".join(f"`{name}={value}`" for name, value in verdict.settings.items())
            if "hf_repo" in verdict.settings:
                same = "a model of ggml-org with its settings, as there (see `--print-config`)"
            texts.setdefault(verdict.kind, []).append(values + (same or verdict.text))
        names = ", ".join(f"`{name}`" for name in (*flag.names, *flag.negatives))
        for kind, said in texts.items():
            rows[kind].setdefault("; ".join(said), []).append(names)

    def table(kind: str, heading: str) -> list[str]:
        cells = [("; ".join(names), text) for text, names in rows[kind].items()]
        return ["", *_table(("flag", heading), cells), ""]

    lines = [
        TABLES,
        "",
        "## Flags",
        "",
        "All flags that are not in these tables work as they are, in every spelling "
        "([flags.md](flags.md)). These map to settings:",
        *table("sets", "sets"),
        "These are accepted and change nothing:",
        *table("accepted", "because"),
        "These are refused:",
        *table("refused", "why, and what to do")[:-1],
    ]
    return by_hand + _page(lines)


def _flag_table(settings: Iterable[Setting]) -> list[str]:
    rows: dict[str, list[str]] = {}  # flags with one meaning and default share a row
    for setting in settings:
        spellings = ", ".join(f"`{name}`" for name in (setting.flag, *setting.aliases))
        option, default = setting.option, setting.default
        choices = () if setting.part == "draft_engine" else option.choices  # the target's
        values = f" ({', '.join(choices)})" if choices else ""
        if default and "default" not in option.help.lower():
            values += f" [{'on' if default is True else default}]"
        meaning = option.help.removesuffix(" of the draft model")  # as the heading says
        rows.setdefault(meaning + values, []).append(spellings)
    return _table(("flag", "meaning"), ((", ".join(names), text) for text, names in rows.items()))


def metrics_page() -> str:
    """Every metric of /metrics with its labels and meaning."""
    intro = [
        "What `/metrics` reports. Names with `llamacpp:` are llama-server's.",
        "",
        "- Tokens, seconds and requests are counted when a request ends; one that fails adds to "
        "`headstart_requests_failed_total` alone.",
        "  Decodes and drafts are counted at every step.",
        "- The two gauges of speed are averages since `/metrics` was last read. For the last "
        "minutes divide two counters:",
        "  `rate(llamacpp:tokens_predicted_total[5m]) / "
        "rate(llamacpp:tokens_predicted_seconds_total[5m])`.",
        "- All but `headstart_engine_restarts_total` start from 0 when the engine process was "
        "restarted.",
    ]
    of_router = ["## Of a router", "", "With several models, `/metrics` without `?model=`:", ""]
    pages = [*_metric_table(METRICS), "", *of_router, *_metric_table(ROUTER_METRICS)]
    return _page(["# Metrics", NOTE, "", *intro, "", *pages])


def _metric_table(metrics: Iterable[Metric[Any]]) -> list[str]:
    rows = []
    for one in metrics:
        labels = f"{{{','.join(one.labels)}}}" if one.labels else ""
        rows.append((f"`{one.name}{labels}`", one.help))
    return _table(("metric", "meaning"), rows)


def errors_page() -> str:
    """Errors as seen by HTTP clients, then the exception tree of errors.py."""
    answers = [(str(status), f"`{type}`", when) for status, type, when in ANSWERS]
    http = [
        'Every error has the body `{"error": {"code": status, "message": "...", "type": "..."}}`; '
        "in Ollama's API it is",
        '`{"error": "..."}`, and for `/v1/messages` it has Anthropic\'s form. In a stream that has '
        "begun, it is the last event.",
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
