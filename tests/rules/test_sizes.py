"""Small files, small functions, few parameters."""

from __future__ import annotations

import ast

from tests.rules.source import ROOT, sources

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_PARAMETERS = 6
OTHERS = {"vendor", "node_modules"}  # folders whose code is not ours to split


def test_no_file_is_longer_than_400_lines() -> None:
    folders = [
        ROOT / name
        for name in ("src", "tests", "benchmarks", "training", "docs", "examples", "scripts")
    ]
    files = [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in (".py", ".js", ".css") and not OTHERS & set(path.parts)
    ]
    long = {
        str(path.relative_to(ROOT)): n for path in files if (n := _num_lines(path)) > MAX_FILE_LINES
    }
    assert long == {}


def test_no_function_is_longer_than_80_lines() -> None:
    long = [
        f"{source}:{node.lineno} {node.name}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert long == []


def test_no_function_has_more_than_6_parameters() -> None:
    many = [
        f"{source}:{node.lineno} {node.name}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _num_parameters(node) > MAX_PARAMETERS
    ]
    assert many == []


def _num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def _num_lines(path: object) -> int:
    with open(str(path), encoding="utf-8") as file:
        return sum(1 for _ in file)
