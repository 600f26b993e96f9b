"""The way between two vocabularies, and the partners of special tokens."""

from __future__ import annotations

import pytest
from tests.unit.text.vocabulary import real

from headstart.testing import ByteVocab
from headstart.text.vocabulary.comparison import TranslationMode, compare, pair_controls
from headstart.text.vocabulary.table import read_table
from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator
from headstart.types.errors import ConfigError


class ShiftedVocab(ByteVocab):
    """The bytes in reverse, ten of them missing, and an end token with another name."""

    size = 247
    eog_ids = frozenset({246})
    eos_id = 246
    bos_id = None
    add_bos = False

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        return [255 - byte for byte in raw if byte >= 10]

    def token_bytes(self, token: int) -> bytes:
        return bytes([255 - token]) if token < 246 else b""

    def token_text(self, token: int) -> bytes:
        return self.token_bytes(token) or b"<|endoftext|>"

    def is_control(self, token: int) -> bool:
        return token == 246


def test_embedded_models_of_one_vocabulary_are_identical() -> None:
    comparison = compare(real.vocab("demo-target"), real.vocab("demo-draft"))
    assert comparison.mode is TranslationMode.IDENTICAL
    assert comparison.draft_share == 1.0
    assert min(comparison.to_draft) >= 0
    assert comparison.to_target.tolist() == list(range(real.vocab("demo-draft").size))


def test_embedded_draft_of_another_vocabulary_goes_by_text() -> None:
    comparison = compare(real.vocab("demo-target"), real.vocab("demo-draft-other"))
    assert comparison.mode is TranslationMode.TEXT
    assert "text vocabularies" in comparison.describe()


def test_maps_join_equal_bytes_only() -> None:
    target, draft = real.vocab("demo-target"), real.vocab("demo-draft-other")
    comparison = compare(target, draft)
    pairs = [
        (token, partner)
        for token, partner in enumerate(comparison.to_target.tolist())
        if partner >= 0
    ]
    assert len(pairs) == comparison.num_shared > 1000
    assert all(draft.token_text(token) == target.token_text(partner) for token, partner in pairs)


def test_mostly_shared_vocabularies_are_mapped_and_the_rest_is_spelled() -> None:
    translator = VocabularyTranslator(ByteVocab(), ShiftedVocab())
    sequence = translator.open()
    sequence.extend([*b"ab\tc", 256])
    assert translator.mode is TranslationMode.SHARED
    # no token for the tab at all
    assert sequence.draft_history == [255 - byte for byte in b"abc"] + [246]
    assert sequence.translate([255 - byte for byte in b"xy"] + [246]) == [*b"xy", 256]
    sequence.truncate(2)
    assert (sequence.draft_history, sequence.num_stable) == ([255 - byte for byte in b"ab"], 2)


def test_small_vocabulary_inside_a_larger_one_is_not_shared() -> None:
    comparison = compare(real.vocab("demo-target"), ByteVocab())
    assert comparison.draft_share > 0.9
    assert comparison.mode is TranslationMode.TEXT


def test_end_of_generation_finds_its_partner_by_role_or_by_the_users_word() -> None:
    plain, demo = read_table(ByteVocab()), read_table(real.vocab("demo-target"))
    by_role = pair_controls(plain, demo)
    assert demo.controls[by_role[256]] == b"<|endoftext|>"
    replaced = pair_controls(plain, demo, {b"<eos>": b"<|im_end|>"})
    assert demo.controls[replaced[256]] == b"<|im_end|>"


def test_replacement_without_left_side_is_refused() -> None:
    with pytest.raises(ConfigError, match="--spec-replace"):
        VocabularyTranslator(ByteVocab(), ShiftedVocab(), [("", "x")])
