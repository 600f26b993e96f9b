"""Questions to measure with, made from the interpreter's own source: seeded, no network.

edit      rename a variable in a function of 4 to 40 lines: most of the answer is in the question
json      describe a function as JSON: a fixed form with a few copied words
chat      which functions does this code call; one in six is a greeting
continue  the rest of a source file: free code
agent     an edit in three turns: the context grows, and answers repeat most of it
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

SKIPPED = (
    "site-packages",
    "/test",
    "idlelib",
    "lib2to3",
    "/encodings/",
    "pydoc_data",
    "_pydecimal",
)
NUM_FUNCTIONS = 1500
MAX_LINES, MAX_CHARS = 40, 1600
CHARS_PER_TOKEN = 2.2  # fewer than any vocabulary has on average, so that answers are not cut
CONTEXT_LINES = 24  # of a file to be continued
NAMES = (
    "amount",
    "entries",
    "position",
    "origin",
    "current",
    "previous",
    "options",
    "message",
    "content",
    "result",
)
GREETINGS = ("Hello", "Who are you?", "What can you do?", "Hi there!", "Help", "Good morning")


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the standard library, dedented."""

    source: str
    tree: ast.FunctionDef

    @property
    def block(self) -> str:
        """As it stands in a question."""
        return f"```python\n{self.source}\n```"

    @property
    def names(self) -> list[str]:
        """Arguments and variables, as often as they are set."""
        arguments = [a.arg for a in self.tree.args.args if a.arg not in ("self", "cls")]
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name)]
        names = arguments + [node.id for node in nodes if isinstance(node.ctx, ast.Store)]
        return [name for name in names if len(name) > 1]


@dataclass(frozen=True, slots=True)
class Library:
    """What questions are made of."""

    functions: Sequence[Function]
    files: Sequence[Sequence[str]]  # lines


@dataclass(frozen=True, slots=True)
class Question:
    """What a user sends, one turn after the other; each answer is the context of the next turn."""

    turns: tuple[str, ...]
    max_tokens: int = 1024
    is_raw: bool = False  # a text to be continued, not a chat
    body: Mapping[str, Any] | None = None  # a request as it is, instead of turns


def make_questions(workload: str, count: int, seed: int) -> list[Question]:
    """The first `count` questions of a workload; another seed gives others."""
    random, library, make = Random(f"{workload}-{seed}"), read_library(), WORKLOADS[workload]
    questions: list[Question] = []
    while len(questions) < count:
        question = make(library, random)
        if question is not None:
            questions.append(question)
    return questions


@cache
def read_library() -> Library:
    """Functions and files of the standard library, the same in every run of one Python."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [
        p for p in sorted(root.rglob("*.py")) if not any(part in p.as_posix() for part in SKIPPED)
    ]
    Random(0).shuffle(paths)
    functions: list[Function] = []
    files: list[Sequence[str]] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError):  # templates, and files for other encodings
            continue
        lines = text.splitlines()
        files.append(lines)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        functions += [one for node in nodes if (one := _function(lines, node)) is not None]
        if len(functions) >= NUM_FUNCTIONS:
            break
    Random(1).shuffle(functions)
    return Library(functions, files)


def _function(lines: Sequence[str], node: ast.FunctionDef) -> Function | None:
    body = lines[node.lineno - 1 : node.end_lineno]
    indent = len(body[0]) - len(body[0].lstrip())
    source = "\n".join(line[indent:] if not line[:indent].strip() else line for line in body)
    fits = 4 <= len(body) <= MAX_LINES and len(source) <= MAX_CHARS
    return Function(source, node) if fits and "`" not in source else None


def num_tokens(text: str) -> int:
    """More than the tokens of an answer like this."""
    return 16 + int(len(text) / CHARS_PER_TOKEN)


def renaming(function: Function, random: Random) -> tuple[str, str] | None:
    """An old name and a new one; None if there is nothing to rename."""
    old, new = random.choice(function.names or [""]), random.choice(NAMES)
    return None if not old or re.search(rf"\b{new}\b", function.source) else (old, new)


def _edit(library: Library, random: Random) -> Question | None:
    function = random.choice(library.functions)
    names = renaming(function, random)
    if names is None:
        return None
    asked = f"Rename `{names[0]}` to `{names[1]}`:\n{function.block}"
    return Question((asked,), num_tokens(function.source))


def _agent(library: Library, random: Random) -> Question | None:
    function = random.choice(library.functions)
    olds = list(dict.fromkeys(function.names))[:3]
    news = random.sample([name for name in NAMES if name not in function.source], len(olds))
    if len(olds) < 3:
        return None
    asked = [f"Rename `{old}` to `{new}`" for old, new in zip(olds, news, strict=True)]
    turns = (f"{asked[0]}:\n{function.block}", f"{asked[1]}.", f"{asked[2]}.")
    return Question(turns, num_tokens(function.source))


def _json(library: Library, random: Random) -> Question:
    return Question((f"Describe this function as JSON:\n{_block(library, random)}",), 96)


def _chat(library: Library, random: Random) -> Question:
    if random.random() < 1 / 6:
        return Question((random.choice(GREETINGS),), 96)
    return Question((f"Which functions does this code call?\n{_block(library, random)}",), 96)


def _block(library: Library, random: Random) -> str:
    return random.choice(library.functions).block


def _continue(library: Library, random: Random) -> Question | None:
    lines = random.choice(library.files)
    starts = [
        i for i, line in enumerate(lines) if line.lstrip().startswith("def ") and i >= CONTEXT_LINES
    ]
    if not starts:
        return None
    end = random.choice(starts) + 1
    text = "\n".join(lines[end - CONTEXT_LINES : end])
    return Question((text + "\n",), 512, is_raw=True) if len(text) <= MAX_CHARS else None


WORKLOADS: Mapping[str, Callable[[Library, Random], Question | None]] = {
    "edit": _edit,
    "json": _json,
    "chat": _chat,
    "continue": _continue,
    "agent": _agent,
}
