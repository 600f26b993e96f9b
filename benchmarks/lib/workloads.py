"""Prompts to measure with, made from the interpreter's standard library: seeded, no network.

    edit       rename a variable in a function of 4 to 40 lines: most of the answer is in the prompt
    rename     the same with the correct answer, which the small demo model often misses
    json       describe a function as JSON: a fixed form with a few copied words
    chat       which functions does this code call; one in six is a greeting
    continue   the rest of a source file: free code
    shift      free code for half of the answer, a verbatim repeat of the prompt for the other half
    random     tokens that nobody can guess

The embedded demo model was trained on such chats. In `rename`, `shift` and `random` the answer is
given, because no prompt makes a small model do that (see `engines.py`).
"""

from __future__ import annotations

import ast
import re
import string
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

from headstart.types.errors import ConfigError

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
CHARS_PER_TOKEN = 2.2  # fewer than any vocabulary here has on average, so that answers are not cut
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
SHIFT_CHARS = 260  # of each half
NUM_CHARACTERS = 120
CHARACTERS = string.ascii_letters + string.digits + string.punctuation
SCRIPTED = ("rename", "shift", "random")  # workloads whose answers are given


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: text with chat markers, and what bounds its answer."""

    text: str
    max_tokens: int = 1024
    sampling: Mapping[str, float] = field(default_factory=dict)  # replaces the run's own parameters
    script: str = ""  # the answer, if it is given


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the standard library, dedented."""

    source: str
    tree: ast.FunctionDef


@dataclass(frozen=True, slots=True)
class Library:
    """What prompts are made of."""

    functions: Sequence[Function]
    files: Sequence[Sequence[str]]  # lines


def make_prompts(workload: str, count: int, seed: int) -> list[Prompt]:
    """The first `count` prompts of a workload; another seed gives others."""
    random, library, make = Random(f"{workload}-{seed}"), read_library(), WORKLOADS[workload]
    prompts: list[Prompt] = []
    while len(prompts) < count:
        prompt = make(library, random)
        if prompt is not None:
            prompts.append(prompt)
    return prompts


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
        found = (
            _function(lines, node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        )
        functions += [function for function in found if function is not None]
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


def _ask(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def _block(source: str) -> str:
    return f"```python\n{source}\n```"


def _tokens(text: str) -> int:
    return 16 + int(len(text) / CHARS_PER_TOKEN)


def _edit(library: Library, random: Random) -> Prompt | None:
    function = random.choice(library.functions)
    names = [a.arg for a in function.tree.args.args if a.arg not in ("self", "cls")]
    names += [
        n.id
        for n in ast.walk(function.tree)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    old = random.choice([n for n in names if len(n) > 1] or [""])
    new = random.choice(NAMES)
    if not old or re.search(rf"\b{new}\b", function.source):
        return None
    return Prompt(
        _ask(f"Rename `{old}` to `{new}`:\n{_block(function.source)}"), _tokens(function.source)
    )


def _rename(library: Library, random: Random) -> Prompt | None:
    """`_edit`, answered as a model answers that can do it."""
    prompt = _edit(library, random)
    if prompt is None:
        return None
    asked = re.search(r"Rename `(\w+)` to `(\w+)`:\n(.*)<\|im_end\|>", prompt.text, re.DOTALL)
    assert asked is not None
    old, new, block = asked.groups()
    script = re.sub(rf"\b{old}\b", new, block)
    return Prompt(prompt.text, _tokens(script), {"temperature": 0.0}, script)


def _json(library: Library, random: Random) -> Prompt:
    source = random.choice(library.functions).source
    return Prompt(_ask(f"Describe this function as JSON:\n{_block(source)}"), 96)


def _chat(library: Library, random: Random) -> Prompt:
    if random.random() < 1 / 6:
        return Prompt(_ask(random.choice(GREETINGS)), 96)
    source = random.choice(library.functions).source
    return Prompt(_ask(f"Which functions does this code call?\n{_block(source)}"), 96)


def _continue(library: Library, random: Random) -> Prompt | None:
    lines = random.choice(library.files)
    starts = [
        i for i, line in enumerate(lines) if line.lstrip().startswith("def ") and i >= CONTEXT_LINES
    ]
    if not starts:
        return None
    end = random.choice(starts) + 1
    text = "\n".join(lines[end - CONTEXT_LINES : end])
    return Prompt(text + "\n", 512) if len(text) <= MAX_CHARS else None


def _shift(library: Library, random: Random) -> Prompt | None:
    """Continue a file with code that it did not have; then repeat the prompt's first lines."""
    free, known = random.sample(library.functions, 2)
    if min(len(free.source), len(known.source)) < SHIFT_CHARS:
        return None
    script = free.source[:SHIFT_CHARS] + "\n\n" + known.source[:SHIFT_CHARS]
    return Prompt(known.source + "\n\n", _tokens(script), {"temperature": 0.0}, script)


def _random(library: Library, random: Random) -> Prompt:
    """Scripted too: at a high temperature a draft model that shares the noise guesses very well."""
    script = "".join(random.choices(CHARACTERS, k=NUM_CHARACTERS))
    return Prompt(random.choice(library.functions).source + "\n", 512, {"temperature": 0.0}, script)


WORKLOADS: dict[str, Callable[[Library, Random], Prompt | None]] = {
    "edit": _edit,
    "rename": _rename,
    "json": _json,
    "chat": _chat,
    "continue": _continue,
    "shift": _shift,
    "random": _random,
}


def parse_cells(workloads: str, temperatures: str) -> list[tuple[str, float]]:
    """Each workload at each temperature, from comma-separated lists; a given answer needs only the
    first.

    Raises:
        ConfigError: a workload is unknown.
    """
    names, values = workloads.split(","), [float(value) for value in temperatures.split(",")]
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise ConfigError(f"there is no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    return [
        (name, value) for name in names for value in (values[:1] if name in SCRIPTED else values)
    ]


def num_looping(tokens: Sequence[int], window: int = 64, longest: int = 24) -> int:
    """How many tokens end a stretch of `window` tokens that repeats with a period of at most
    `longest`.

    Small models loop at temperature 0, which flatters every text speculator: report it.
    O(len(tokens) * longest).
    """
    looping = 0
    # per period: how many of the last tokens equal the one a period before
    runs = [0] * (longest + 1)
    for i, token in enumerate(tokens):
        for period in range(1, longest + 1):
            runs[period] = runs[period] + 1 if i >= period and tokens[i - period] == token else 0
        looping += any(runs[period] >= window - period for period in range(1, longest + 1))
    return looping
