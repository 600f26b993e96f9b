from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest
from gguf import GGUFReader
from training import corpus

from headstart.app import demo
from headstart.extras.bench.library import block

SOURCE = (
    "def scale(values, factor=2):\n    total = sum(values)\n"
    "    print(total, factor)\n    return total * factor"
)


def answer(task: str | None) -> str:
    assert task is not None
    return task.split("<|im_start|>assistant\n")[1].removesuffix("<|im_end|>\n")


@pytest.mark.parametrize("seed", range(20))
def test_a_rename_changes_one_name_everywhere_and_nothing_else(seed):
    task = corpus.rename(SOURCE, Random(seed))
    assert task is not None
    asked = re.search(r"`(\w+)` to `(\w+)`", task)
    assert asked is not None
    old, new = asked.groups()
    renamed = answer(task)
    assert re.search(rf"\b{new}\b", SOURCE) is None
    assert re.search(rf"\b{old}\b", renamed) is None
    assert re.sub(rf"\b{new}\b", old, renamed) == block(SOURCE)


def test_a_description_is_valid_json_about_the_function() -> None:
    described = json.loads(answer(corpus.describe(SOURCE, Random(0))))
    assert described == {"name": "scale", "arguments": ["values", "factor"], "returns": True}


def test_calls_are_listed_once_in_the_order_of_the_syntax_tree() -> None:
    assert answer(corpus.list_calls(SOURCE, Random(0))) == "- `sum`\n- `print`"


def test_the_same_seed_makes_the_same_tasks() -> None:
    assert corpus.make_tasks([SOURCE], 5, Random(3)) == corpus.make_tasks([SOURCE], 5, Random(3))
    assert corpus.make_tasks([SOURCE], 5, Random(3)) != corpus.make_tasks([SOURCE], 5, Random(4))


NAMES, MAX_BYTES = (demo.TARGET, demo.DRAFT, demo.DRAFT_OTHER), 25_000_000


def tokens_of(path: Path) -> list[str]:
    tokens: list[str] = GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    return tokens


@pytest.mark.parametrize("name", NAMES)
def test_every_embedded_model_is_a_readable_llama_with_a_chat_template(name: str) -> None:
    reader = GGUFReader(demo.path(name))
    assert reader.fields["general.architecture"].contents() == "llama"
    assert "<|im_start|>assistant" in reader.fields["tokenizer.chat_template"].contents()


def test_the_draft_shares_the_targets_vocabulary_and_the_other_draft_does_not() -> None:
    target = tokens_of(demo.path(demo.TARGET))
    assert tokens_of(demo.path(demo.DRAFT)) == target
    assert tokens_of(demo.path(demo.DRAFT_OTHER)) != target


def test_the_models_together_stay_small_and_have_a_card_beside_them() -> None:
    assert sum(demo.path(name).stat().st_size for name in NAMES) < MAX_BYTES
    card = demo.path(demo.TARGET).with_name("README.md").read_text()
    assert all(f"{name}.gguf" in card for name in NAMES)
