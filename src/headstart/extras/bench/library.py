"""Questions for measurements, generated from the standard library's source; seeded.

edit      rename a variable in a function of 4 to 40 lines: most of the answer is in the question
json      describe a function as JSON: a fixed form with a few copied words
chat      which functions does this code call; one in six is a greeting
continue  the rest of a source file: free code
words     words in no order: text that repeats nothing
agent     reads files with a tool and edits them, one after the other: the context grows
"""

from __future__ import annotations

import ast
import json
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from headstart.types.errors import ConfigError

MAX_CHARS = 1600
NAMES = (
    "amount", "entries", "position", "origin", "current", "previous", "options", "message",
    "content", "result",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """The messages of a user, turn by turn; each answer is part of the next turn's context."""

    turns: tuple[str | Sequence[Mapping[str, Any]], ...] = ()  # a user's message, or several
    max_tokens: int = 1024
    is_raw: bool = False  # a text to be continued, not a chat
    body: Mapping[str, Any] = field(default_factory=dict)  # further fields of the request, or all


def make_questions(workload: str, count: int, seed: object) -> list[Question]:
    """The first `count` questions of a workload; another seed gives others."""
    random, make = Random(f"{workload}-{seed}"), WORKLOADS[workload]
    questions: list[Question] = []
    while len(questions) < count:
        if (question := make(random)) is not None:
            questions.append(question)
    return questions


def read_questions(file: Path) -> list[Question]:
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
    # taken out, because --tokens counts too
    limits = [body.pop(name, 0) for name in ("n_predict", "max_completion_tokens", "max_tokens")]
    limit = next((one for one in limits if isinstance(one, int) and one > 0), 1024)
    return Question((), limit, is_raw="prompt" in body, body=body)


@cache
def read_library() -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Functions and files (their lines) of the standard library, the same in every run of one
    Python.
    """
    functions: list[str] = []
    files: list[Sequence[str]] = []
    for text, own in read_files(Random(0)):
        files.append(text.splitlines())
        functions += [one for one in own if 3 <= one.count("\n") < 40 and len(one) <= MAX_CHARS]
        if len(functions) >= 1500:
            break
    Random(1).shuffle(functions)
    return functions, files


def any_function(random: Random) -> str:
    """One of the functions."""
    return random.choice(read_library()[0])


def _any_file(random: Random) -> Sequence[str]:
    return random.choice(read_library()[1])


def read_files(random: Random) -> Iterator[tuple[str, list[str]]]:
    """The standard library's files with their functions that have no code block, dedented;
    shuffled.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = re.compile("site-packages|/test|idlelib|lib2to3|/encodings/|pydoc_data|_pydecimal")
    paths = [path for path in sorted(root.rglob("*.py")) if not skipped.search(path.as_posix())]
    random.shuffle(paths)
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
            nodes = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef)]
        except (SyntaxError, UnicodeDecodeError, OSError):  # templates, and other encodings
            continue
        lines = text.split("\n")
        functions = [_dedented(lines[node.lineno - 1 : node.end_lineno]) for node in nodes]
        yield text, [one for one in functions if "`" not in one]


def _dedented(lines: Sequence[str]) -> str:
    """Remove the first line's indentation from every line; lines inside strings may have less."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines)


def block(function: str) -> str:
    """A function as a block of Markdown."""
    return f"```python\n{function}\n```"


def tree_of(function: str) -> ast.FunctionDef:
    """A function's syntax tree."""
    (tree,) = ast.parse(function).body
    assert isinstance(tree, ast.FunctionDef)
    return tree


def names_of(function: str) -> list[str]:
    """Arguments and variables, as often as they are set."""
    tree = tree_of(function)
    arguments = [a.arg for a in tree.args.args if a.arg not in ("self", "cls")]
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names = arguments + [node.id for node in nodes if isinstance(node.ctx, ast.Store)]
    return [name for name in names if len(name) > 1]


def num_tokens(text: str) -> int:
    """An upper estimate of the tokens of an answer like this."""
    # fewer characters a token than any vocabulary has on average, so that answers are not cut
    return 16 + int(len(text) / 2.2)


def renaming(function: str, random: Random) -> tuple[str, str] | None:
    """An old name and a new one; None if there is nothing to rename."""
    old, new = random.choice(names_of(function) or [""]), random.choice(NAMES)
    return None if not old or re.search(rf"\b{new}\b", function) else (old, new)


def _edit(random: Random) -> Question | None:
    function = any_function(random)
    names = renaming(function, random)
    if names is None:
        return None
    asked = f"Rename `{names[0]}` to `{names[1]}`:\n{block(function)}"
    return Question((asked,), num_tokens(function))


def _agent(random: Random) -> Question | None:
    """Three files, each of which is read by a given call and edited by the model."""
    functions = random.sample(read_library()[0], 3)
    names = [renaming(function, random) for function in functions]
    turns: list[Sequence[Mapping[str, Any]]] = []
    for number, (function, pair) in enumerate(zip(functions, names, strict=True)):
        if pair is None:
            return None
        called = {"name": "read_file", "arguments": json.dumps({"path": f"{number}.py"})}
        calls = [{"id": f"call_{number}", "type": "function", "function": called}]
        asked = f"Rename `{pair[0]}` to `{pair[1]}` in {number}.py."
        turns.append(
            (
                {"role": "user", "content": asked},
                {"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "tool_call_id": f"call_{number}", "content": block(function)},
            )
        )
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    tool = {"name": "read_file", "description": "Read a file.", "parameters": parameters}
    tools = [{"type": "function", "function": tool}]
    return Question(tuple(turns), num_tokens(functions[0]), body={"tools": tools})


def _json(random: Random) -> Question:
    return Question((f"Describe this function as JSON:\n{block(any_function(random))}",), 96)


def _chat(random: Random) -> Question:
    if random.random() < 1 / 6:
        known = ("Hello", "Who are you?", "What can you do?", "Hi there!", "Help", "Good morning")
        return Question((random.choice(known),), 96)
    return Question((f"Which functions does this code call?\n{block(any_function(random))}",), 96)


def _continue(random: Random) -> Question | None:
    lines = _any_file(random)
    num_before = 24  # lines before the text to continue
    found = (i for i, line in enumerate(lines) if line.lstrip().startswith("def "))
    starts = [i for i in found if i >= num_before]
    if not starts:
        return None
    end = random.choice(starts) + 1
    text = "\n".join(lines[end - num_before : end])
    return Question((text + "\n",), 512, is_raw=True) if len(text) <= MAX_CHARS else None


def _words(random: Random) -> Question:
    found = re.findall(r"[a-z]{3,}", " ".join(_any_file(random)))
    words = sorted(set(found))
    random.shuffle(words)
    return Question((" ".join(words[:60]),), 96, is_raw=True)


WORKLOADS: Mapping[str, Callable[[Random], Question | None]] = {
    "edit": _edit,
    "json": _json,
    "chat": _chat,
    "continue": _continue,
    "words": _words,
    "agent": _agent,
}
