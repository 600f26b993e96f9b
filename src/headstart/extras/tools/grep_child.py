"""Searches files for a regular expression, in a separate program that can be killed.

It is run as a script: reads one JSON object and writes text. It uses the standard library only.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, TextIO


def main() -> int:
    """Read the task, write what was found."""
    task = json.load(sys.stdin)
    try:
        pattern = re.compile(task["pattern"], re.IGNORECASE if task["ignore_case"] else 0)
    except (re.error, RecursionError) as error:
        print(f"invalid regex: {error}")
        return 1
    count, is_full = 0, False
    for name, path, content in task["files"]:
        try:
            file = _open(path) if content is None else io.StringIO(content, newline="")
        except OSError:
            continue  # unreadable
        with file:
            for shown in _matches(task, pattern, name, file):
                is_full = count == task["max_results"]
                if is_full:
                    break
                count += 1
                print(shown)
        if is_full:
            break
    print(f"\n---\nTotal matches: {count}")
    if is_full:
        print(f"[more than {count} matches; narrow path, pattern or include to see others]")
    return 0


def _open(path: str) -> TextIO:
    return open(path, encoding="utf-8", errors="replace", newline="")


def _matches(
    task: dict[str, Any], pattern: re.Pattern[str], name: str, file: TextIO
) -> Iterator[str]:
    """Each line that matches, as it is shown, with those around it. Holds no more of the file."""
    around = min(task["context"], 100)
    before: deque[str] = deque(maxlen=around)  # lines before the current one
    ahead = deque(itertools.islice(_lines(file), around + 1))
    rest = _lines(file)
    number = 0
    while ahead:
        number += 1
        if pattern.search(ahead[0]):
            yield _shown(task, name, [*before, *ahead], number, len(before))
        before.append(ahead.popleft())
        ahead.extend(itertools.islice(rest, 1))


def _lines(file: TextIO) -> Iterator[str]:
    """Lines at line feeds only, which are left out."""
    # the rest of a longer line is searched as separate lines
    while line := file.readline(1 << 17):
        yield line.removesuffix("\n")


def _shown(task: dict[str, Any], name: str, lines: list[str], number: int, place: int) -> str:
    """The line of this number, which is at `place` of those around it."""
    around, shown = task["context"], []
    for index, line in enumerate(lines):
        mark = ":" if index == place else "-"
        at = f"{number + index - place}{mark}" if task["numbers"] or around else ""
        shown.append(f"{name}{mark}{at}{line}")
    return "\n".join([*shown, "--"] if around else shown)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stdin):
        # mypy sees TextIO; a program has a TextIOWrapper
        stream.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    raise SystemExit(main())
