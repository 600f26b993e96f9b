from __future__ import annotations

import ast
import json
import re
from random import Random

import pytest
from training import corpus

SOURCE = (
    "def scale(values, factor=2):\n    total = sum(values)\n"
    "    print(total, factor)\n    return total * factor"
)


@pytest.fixture
def function() -> corpus.Function:
    tree = ast.parse(SOURCE).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return corpus.Function(SOURCE, tree)


def answer(task: str | None) -> str:
    assert task is not None
    return task.split("<|im_start|>assistant\n")[1].removesuffix("<|im_end|>\n")


@pytest.mark.parametrize("seed", range(20))
def test_a_rename_changes_one_name_everywhere_and_nothing_else(
    function: corpus.Function, seed: int
) -> None:
    task = corpus.rename(function, Random(seed))
    assert task is not None
    asked = re.search(r"`(\w+)` to `(\w+)`", task)
    assert asked is not None
    old, new = asked.groups()
    renamed = answer(task)
    assert re.search(rf"\b{new}\b", SOURCE) is None
    assert re.search(rf"\b{old}\b", renamed) is None
    assert re.sub(rf"\b{new}\b", old, renamed) == corpus.fenced(SOURCE)


def test_a_description_is_valid_json_about_the_function(function: corpus.Function) -> None:
    described = json.loads(answer(corpus.describe(function, Random(0))))
    assert described == {"name": "scale", "arguments": ["values", "factor"], "returns": True}


def test_calls_are_listed_once_in_the_order_of_the_syntax_tree(function: corpus.Function) -> None:
    assert answer(corpus.list_calls(function, Random(0))) == "- `sum`\n- `print`"


def test_the_same_seed_makes_the_same_tasks(function: corpus.Function) -> None:
    assert corpus.make_tasks([function], 5, Random(3)) == corpus.make_tasks(
        [function], 5, Random(3)
    )
    assert corpus.make_tasks([function], 5, Random(3)) != corpus.make_tasks(
        [function], 5, Random(4)
    )
