"""Prompts to measure with, made from the interpreter's standard library: seeded, no network.

    edit       rename a variable in a function of 4 to 40 lines: most of the answer is in the prompt
    rename     the same with the correct answer, which the small demo model often misses
    json       describe a function as JSON: a fixed form with a few copied words
    chat       which functions does this code call; one in six is a greeting
    continue   the rest of a source file: free code

The embedded demo model was trained on such chats. In `rename` the answer is given, because no
prompt makes a small model do that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headstart.extras.bench import library as questions
from headstart.extras.bench.library import Library, num_tokens, read_library
from headstart.types.errors import ConfigError

SCRIPTED = ("rename",)  # workloads whose answers are given


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: text with chat markers, what bounds its answer, the answer if it is given."""

    text: str
    max_tokens: int = 1024
    script: str = ""


def make_prompts(workload: str, count: int, seed: int) -> list[Prompt]:
    """The first `count` prompts of a workload; another seed gives others."""
    random, library, make = Random(f"{workload}-{seed}"), read_library(), WORKLOADS[workload]
    prompts: list[Prompt] = []
    while len(prompts) < count:
        prompt = make(library, random)
        if prompt is not None:
            prompts.append(prompt)
    return prompts


def _asked(workload: str) -> Callable[[Library, Random], Prompt | None]:
    """Questions of `headstart bench` as prompts."""

    def make(library: Library, random: Random) -> Prompt | None:
        question = questions.WORKLOADS[workload](library, random)
        if question is None:
            return None
        (text,) = question.turns
        assert isinstance(text, str), "one message of a user"
        return Prompt(text if question.is_raw else _ask(text), question.max_tokens)

    return make


def _ask(question: str) -> str:
    """With the markers of the demo model's chat template."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def _rename(library: Library, random: Random) -> Prompt | None:
    """An edit, answered as a model answers that can do it."""
    function = random.choice(library.functions)
    names = questions.renaming(function, random)
    if names is None:
        return None
    old, new = names
    script = re.sub(rf"\b{old}\b", new, function.block)
    text = _ask(f"Rename `{old}` to `{new}`:\n{function.block}")
    return Prompt(text, num_tokens(script), script)


WORKLOADS: dict[str, Callable[[Library, Random], Prompt | None]] = {
    **{name: _asked(name) for name in ("edit", "json", "chat", "continue")},
    "rename": _rename,
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
