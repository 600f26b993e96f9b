"""Imports point one way: the table of docs/architecture.md."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.rules.source import PACKAGE, ROOT, sources

BOTTOM = {"types", "errors", "config"}
TOOLS = BOTTOM | {"structures", "vocabulary"}
CORE = TOOLS | {"sampling", "grammar", "control", "speculators", "scheduler"}

ALLOWED: dict[str, set[str]] = {
    "__init__": set(),
    "types": set(),
    "errors": set(),
    "config_fields": {"errors"},
    "config_chat": {"errors", "config_fields"},
    "config_embedding": {"errors", "config_fields"},
    "config_engine": {"errors", "config_fields"},
    "config_logs": {"errors", "config_fields"},
    "config_router": {"errors", "config_fields"},
    "config_sampling": {"errors", "config_fields"},
    "config_tools": {"errors", "config_fields"},
    "config": {
        "types",
        "errors",
        "config_fields",
        "config_chat",
        "config_embedding",
        "config_engine",
        "config_logs",
        "config_router",
        "config_sampling",
        "config_tools",
    },
    "greeting": set(),
    "logs": BOTTOM,
    "process": BOTTOM | {"logs"},
    "parent": BOTTOM,
    "structures": BOTTOM,
    "cache": BOTTOM | {"structures"},
    "vocabulary": BOTTOM | {"structures"},
    "sampling": BOTTOM | {"structures"},
    "grammar": TOOLS,
    "control": BOTTOM | {"structures"},
    "speculators": TOOLS | {"sampling"},
    "scheduler": CORE | {"text", "cache"},
    "speculation": BOTTOM | {"speculators"},
    "toolcalls": BOTTOM | {"structures", "text", "grammar"},
    "text": BOTTOM | {"structures", "vocabulary"},
    "tools": BOTTOM,
    "server": BOTTOM
    | {"structures", "text", "toolcalls", "sampling", "grammar", "scheduler", "tools"},
    "router": BOTTOM | {"structures", "server", "logs"},
    "fleet": BOTTOM | {"config_fields", "structures", "server", "router"},
    "cluster": BOTTOM | {"config_fields", "parent", "router", "fleet"},
    "engine": BOTTOM | {"structures", "vocabulary", "sampling"},
    "demo": BOTTOM,
    "hub_files": {"errors"},
    "hub": BOTTOM | {"hub_files"},
    "hub_store": BOTTOM | {"hub", "hub_files"},
    "testing": CORE,
    "saved_control": BOTTOM | {"control"},
    "loading": BOTTOM | {"structures", "engine"},
    "remote": BOTTOM | {"engine", "saved_control"},
    "model_files": BOTTOM | {"hub", "hub_files", "demo", "engine", "loading", "speculation"},
    "drafters": TOOLS | {"scheduler", "speculation", "engine", "loading", "saved_control"},
    "assemble": CORE
    | {
        "drafters",
        "engine",
        "server",
        "text",
        "model_files",
        "speculation",
        "saved_control",
        "loading",
        "remote",
        "greeting",
        "logs",
        "parent",
        "process",
    },
    "local": BOTTOM | {"assemble", "scheduler"},
    "cli": CORE
    | {
        "assemble",
        "local",
        "remote",
        "text",
        "hub",
        "hub_store",
        "model_files",
        "demo",
        "parent",
        "logs",
        "router",
        "fleet",
        "cluster",
    },
    "__main__": {"cli"},
}
# `Engine.make_filters` takes SamplingParams; `headstart devices` prints what the engine measured.
FOR_THE_TYPE_CHECKER = {("types", "sampling"), ("cli", "engine")}


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
        and (source.folder, target) not in FOR_THE_TYPE_CHECKER
    ]
    assert breaches == []


def test_what_only_the_type_checker_imports_is_not_loaded() -> None:
    code = (
        "import headstart.types, sys; "
        "print({name.split('.')[1] for name in sys.modules if name.startswith('headstart.')})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "{'types'}"


def test_the_document_has_the_same_table() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", text, re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", allowed)) for name, allowed in rows} == ALLOWED


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("llama_cpp", {"engine"}),
        ("ray", {"cluster"}),
        ("starlette", {"server", "router", "fleet"}),
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
    """`suffix_alignment.py` stands beside `suffix.py`, which alone may import it; bases are for
    all.
    """
    common = {"base", "base_states", "__init__"}
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
