"""Questions of `headstart bench` as prompts of the embedded demo model, which no server renders.

`rename` is `edit` with the correct answer given, which the small demo model often misses.
"""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

from headstart.extras.bench.library import (
    WORKLOADS,
    Question,
    any_function,
    block,
    make_questions,
    num_tokens,
    renaming,
)
from headstart.types.errors import ConfigError

RENAME = "rename"
NAMES = ("edit", "json", "chat", "continue", RENAME)


class Prompt(NamedTuple):
    """One request: text with chat markers, what bounds its answer, the answer if it is given."""

    text: str
    max_tokens: int
    script: str = ""


def make_prompts(workload: str, count: int, seed: int) -> list[Prompt]:
    """The first `count` prompts of a workload, none twice; another seed gives others."""
    if workload in WORKLOADS:
        questions = make_questions(workload, 2 * count, seed)
        return list(dict.fromkeys(Prompt(text_of(q), q.max_tokens) for q in questions))[:count]
    random = Random(f"{workload}-{seed}")
    prompts: list[Prompt] = []
    while len(prompts) < count:
        function = any_function(random)
        if (names := renaming(function, random)) is not None:
            script = re.sub(rf"\b{names[0]}\b", names[1], block(function))
            asked = f"Rename `{names[0]}` to `{names[1]}`:\n{block(function)}"
            prompts.append(Prompt(text_of(Question((asked,))), num_tokens(script), script))
    return prompts


def text_of(question: Question) -> str:
    """A question of one turn with the markers of the demo model's chat template."""
    (text,) = question.turns
    assert isinstance(text, str), "one message of a user"
    if question.is_raw:
        return text
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def parse_cells(workloads: str, temperatures: str) -> list[tuple[str, float]]:
    """Each workload at each temperature, from comma-separated lists; a given answer needs only the
    first.

    Raises:
        ConfigError: a workload is unknown.
    """
    names, values = workloads.split(","), [float(value) for value in temperatures.split(",")]
    if unknown := [name for name in names if name not in NAMES]:
        raise ConfigError(f"there is no workload {unknown[0]!r}; there are {', '.join(NAMES)}")
    return [(name, value) for name in names for value in (values[:1] if name == RENAME else values)]
