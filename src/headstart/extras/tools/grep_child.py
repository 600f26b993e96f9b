"""Searches files for a regular expression: a program of its own, which can be killed.

It is run as a script: reads one JSON object and writes text. It uses the standard library only.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any


def main() -> int:
    """Read the task, write what was found."""
    task = json.load(sys.stdin)
    try:
        pattern = re.compile(task["pattern"], re.IGNORECASE if task["ignore_case"] else 0)
    except (re.error, RecursionError) as error:
        print(f"invalid regex: {error}")
        return 1
    count = 0
    is_full = False
    for name, lines, index in _hits(task, pattern):
        if count == task["max_results"]:
            is_full = True
            break
        count += 1
        _show(task, name, lines, index)
    print(f"\n---\nTotal matches: {count}")
    if is_full:
        print(f"[more than {count} matches; narrow path, pattern or include to see others]")
    return 0


def _hits(task: dict[str, Any], pattern: re.Pattern[str]) -> Iterator[tuple[str, list[str], int]]:
    for name, path, content in task["files"]:
        text = _read(path) if content is None else content
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        for index, line in enumerate(lines):
            if pattern.search(line):
                yield name, lines, index


def _read(path: str) -> str:
    """The content of a file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except OSError:
        return ""


def _show(task: dict[str, Any], name: str, lines: list[str], index: int) -> None:
    around = task["context"]
    for place in range(max(0, index - around), min(len(lines), index + around + 1)):
        mark = ":" if place == index else "-"
        number = f"{place + 1}{mark}" if task["numbers"] or around else ""
        print(f"{name}{mark}{number}{lines[place]}")
    if around:
        print("--")


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stdin):
        # TextIO to mypy, TextIOWrapper in a program of its own
        stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    raise SystemExit(main())
