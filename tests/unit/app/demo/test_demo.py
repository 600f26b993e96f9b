from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader

from headstart.app import demo
from headstart.types.errors import ModelError

MAX_BYTES = 25_000_000


def tokens_of(path: Path) -> list[str]:
    tokens: list[str] = GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    return tokens


@pytest.mark.parametrize("name", demo.NAMES)
def test_every_embedded_model_is_a_readable_llama_with_a_chat_template(name: str) -> None:
    reader = GGUFReader(demo.path(name))
    assert reader.fields["general.architecture"].contents() == "llama"
    assert "<|im_start|>assistant" in reader.fields["tokenizer.chat_template"].contents()


def test_the_draft_shares_the_targets_vocabulary_and_the_other_draft_does_not() -> None:
    target = tokens_of(demo.path(demo.TARGET))
    assert tokens_of(demo.path(demo.DRAFT)) == target
    assert tokens_of(demo.path(demo.DRAFT_OTHER)) != target


def test_the_models_together_stay_small_and_have_a_card_beside_them() -> None:
    assert sum(demo.path(name).stat().st_size for name in demo.NAMES) < MAX_BYTES
    card = demo.path(demo.TARGET).with_name("README.md").read_text()
    assert all(f"{name}.gguf" in card for name in demo.NAMES)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"'demo-huge'.*demo-target, demo-draft, demo-draft-other"):
        demo.path("demo-huge")
