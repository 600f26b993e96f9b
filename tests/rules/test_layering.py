"""Imports point one way: the table of docs/architecture.md."""

from __future__ import annotations

import re

import pytest
from tests.rules.source import PACKAGE, ROOT, sources

ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "config": {"types"},
    "structures": {"types", "config"},
    "text": {"types", "config", "structures"},
    "sampling": {"types", "structures", "text"},
    "speculators": {"types", "config", "structures", "text", "sampling"},
    "control": {"types", "structures"},
    "engine": {"types", "config", "structures", "text", "sampling"},
    "scheduler": {"types", "config", "structures", "text", "sampling", "speculators", "control"},
    "worker": {"types", "config", "structures", "scheduler"},
    "server": {"types", "config", "structures", "text"},
    "gateway": {"types", "config", "structures", "server"},
}
ALLOWED["app"] = {*ALLOWED}
ALLOWED["extras"] = {*ALLOWED}
ALLOWED |= {"__init__": set(), "__main__": {"app"}, "testing": {"extras"}}

EXCEPTIONS = {
    # for the type checker only
    ("scheduler/scheduler.py", "worker"),
    ("worker/embedding.py", "engine"),
    ("control/budget.py", "scheduler"),
    ("control/calibration.py", "scheduler"),
    ("control/controller.py", "scheduler"),
    ("control/values.py", "scheduler"),
}


def test_every_folder_has_its_place_in_the_table() -> None:
    assert {source.folder for source in sources()} <= ALLOWED.keys()


def test_imports_point_one_way() -> None:
    breaches = [
        f"{source}: {source.folder} must not import {name}"
        for source in sources()
        for name in source.imports()
        if name.startswith("headstart.")
        and (target := name.split(".")[1]) != source.folder
        and target in ALLOWED  # `from headstart import __version__` is no layer
        and target not in ALLOWED[source.folder]
        and (str(source.path.relative_to(PACKAGE)), target) not in EXCEPTIONS
    ]
    assert breaches == []


def test_every_exception_is_needed() -> None:
    needed = {
        (str(source.path.relative_to(PACKAGE)), name.split(".")[1])
        for source in sources()
        for name in source.imports()
        if name.startswith("headstart.")
    }
    assert needed >= EXCEPTIONS


def test_the_document_has_the_same_table() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    section = text.split("## Who may import whom")[1].split("\n## ")[0]
    table: dict[str, set[str]] = {}
    for name, allowed in re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", section, re.MULTILINE):
        table[name] = {*table} if allowed == "all above" else set(re.findall(r"`(\w+)`", allowed))
    assert table == ALLOWED


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("llama_cpp", set()),  # engine/binding.py is our own
        ("ray", {"extras"}),
        ("starlette", {"server", "gateway", "extras"}),
    ],
)
def test_a_library_has_few_doors(library: str, homes: set[str]) -> None:
    breaches = [
        f"{source} imports {name}"
        for source in sources()
        for name in source.imports()
        if name.split(".")[0] == library and source.folder not in homes
    ]
    assert breaches == []


def test_speculators_do_not_know_each_other() -> None:
    """`suffix_alignment.py` stands beside `suffix.py`, which alone may import it; bases and the
    states of targets are for all.
    """
    common = {"__init__", "base", "base_texts", "base_states", "target_states"}
    names = {path.stem for path in (PACKAGE / "speculators").glob("*.py")} - common
    owners = {
        name: min((one for one in names if f"{name}_".startswith(f"{one}_")), key=len)
        for name in names
    }
    breaches = [
        f"{source} imports {name}"
        for source in sources()
        for name in source.imports()
        if name.startswith("headstart.speculators.")
        and (imported := owners.get(name.split(".")[2]))
        and source.folder == "speculators"
        and owners.get(source.path.stem) != imported
    ]
    assert breaches == []
