"""One word for one thing: the table of terms in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.rules.source import ROOT, Source, sources

THE_SYSTEMS = {("headstart.server.listen", "backlog")}  # what a socket calls it


def retired_words() -> frozenset[str]:
    """The last column of the table: words that were used for these things, or might be."""
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    table = text[text.index("| term |") : text.index("\n\n", text.index("| term |"))]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    return frozenset(word for row in rows for word in re.findall(r"`(\w+)`", row[-1]))


def test_no_name_in_the_package_has_a_word_that_the_table_retires() -> None:
    retired = retired_words()
    assert {"seat", "desk", "bridge"} <= retired
    breaches = [
        f"{source}: {name}"
        for source in sources()
        for name in _names(source)
        for word in _words(name)
        if word in retired and (source.module, word) not in THE_SYSTEMS
    ]
    assert breaches == []


def test_a_class_name_stands_for_one_class() -> None:
    """With or without an underscore. Only a speculator's `Options` are many."""
    places = defaultdict(list)
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.name != "Options":
                places[node.name.lstrip("_")].append(str(source))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_function_named_as_a_question_changes_anything() -> None:
    """Who skips a condition must not miss an action."""
    breaches = [
        f"{source}:{node.lineno} {node.name}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef) and re.match("_?(is|has|can)_", node.name)
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
    ]
    assert breaches == []


def _names(source: Source) -> Iterator[str]:
    """All names that the module defines or uses, and its own."""
    yield source.path.stem
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg or ""


def _words(name: str) -> Iterator[str]:
    """`num_granted` and `NumGranted` -> num, granted; plurals count as their singular."""
    for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
        yield word.lower()
        yield word.lower().removesuffix("s")
