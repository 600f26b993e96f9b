"""The way between two vocabularies, and the partners of special tokens."""

from __future__ import annotations

import random

import pytest
from tests.unit.text.vocabulary import real

from headstart.testing import ByteVocab
from headstart.text.vocabulary.comparison import pair_controls
from headstart.text.vocabulary.replacements import (
    DRAFT_BASE,
    TARGET_BASE,
    Replacements,
    parse_pairs,
    symbols_of,
)
from headstart.text.vocabulary.table import VocabTable, read_table
from headstart.text.vocabulary.templates import find_family, find_replacements
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
    translator = real.translator("demo-target", "demo-draft")
    assert translator.mode == "identical"
    assert "(100.0%)" in translator.describe()
    assert min(translator.to_draft) >= 0
    assert translator.to_target.tolist() == list(range(real.vocab("demo-draft").size))


def test_embedded_draft_of_another_vocabulary_goes_by_text() -> None:
    translator = real.translator("demo-target", "demo-draft-other")
    assert translator.mode == "text"
    assert "text vocabularies" in translator.describe()


def test_maps_join_equal_bytes_only() -> None:
    target, draft = real.vocab("demo-target"), real.vocab("demo-draft-other")
    translator = real.translator("demo-target", "demo-draft-other")
    pairs = [
        (token, partner)
        for token, partner in enumerate(translator.to_target.tolist())
        if partner >= 0
    ]
    assert len(pairs) > 1000
    assert f": {len(pairs)} of {draft.size} draft tokens" in translator.describe()
    assert all(draft.token_text(token) == target.token_text(partner) for token, partner in pairs)


def test_mostly_shared_vocabularies_are_mapped_and_the_rest_is_spelled() -> None:
    translator = VocabularyTranslator(ByteVocab(), ShiftedVocab())
    sequence = real.sequence(translator)
    sequence.extend([*b"ab\tc", 256])
    assert translator.mode == "shared"
    # no token for the tab at all
    assert sequence.draft_history == [255 - byte for byte in b"abc"] + [246]
    assert sequence.translate([255 - byte for byte in b"xy"] + [246]) == [*b"xy", 256]
    sequence.num_stable = len(sequence.draft_history)
    sequence.truncate(2)
    assert sequence.draft_history == [255 - byte for byte in b"ab"]
    assert sequence.num_stable <= 2


def test_small_vocabulary_inside_a_larger_one_is_not_shared() -> None:
    translator = VocabularyTranslator(real.vocab("demo-target"), ByteVocab())
    assert (translator.to_target >= 0).mean() > 0.9
    assert translator.mode == "text"


def test_end_of_generation_finds_its_partner_by_role_or_by_the_users_word() -> None:
    plain, demo = read_table(ByteVocab()), read_table(real.vocab("demo-target"))
    by_role = pair_controls(plain, demo)
    assert demo.controls[by_role[256]] == b"<|endoftext|>"
    replaced = pair_controls(plain, demo, {b"<eos>": b"<|im_end|>"})
    assert demo.controls[replaced[256]] == b"<|im_end|>"


def test_replacement_without_left_side_is_refused() -> None:
    with pytest.raises(ConfigError, match="--spec-replace"):
        VocabularyTranslator(ByteVocab(), ShiftedVocab(), [("", "x")])


@pytest.fixture(scope="module")
def table() -> VocabTable:
    return read_table(real.vocab("demo-target"))


PAIRS = (
    ("<|im_start|>user\n", "[INST]"),
    ("<|im_start|>", "[?]"),
    ("ab", "c"),
    ("abba", "<|im_end|>"),
)


def test_control_tokens_and_text_have_symbols_of_their_own(table: VocabTable) -> None:
    symbols = symbols_of("é<|im_start|>", table, TARGET_BASE)
    assert symbols[:2] == "é".encode().decode("latin-1")
    assert table.controls[ord(symbols[2]) - TARGET_BASE] == b"<|im_start|>"


@pytest.mark.parametrize("seed", range(20))
def test_stream_in_pieces_is_rewritten_like_the_whole(table: VocabTable, seed: int) -> None:
    rng = random.Random(seed)
    parts = ["<|im_start|>", "user\n", "use", "ab", "ba", "a", "b", "x"]
    symbols = symbols_of("".join(rng.choices(parts, k=12)) + "x", table, TARGET_BASE)
    replacements = Replacements(PAIRS, table, table)
    whole, held = replacements.apply(symbols)
    assert held == ""
    out, held = "", ""
    start = 0
    while start < len(symbols):
        end = start + rng.randrange(1, 4)
        ready, held = replacements.apply(held + symbols[start:end])
        out += ready
        start = end
    assert out + held == whole


def test_longest_source_wins_and_results_are_draft_symbols(table: VocabTable) -> None:
    replacements = Replacements(PAIRS, table, table)
    end = next(token for token, text in table.controls.items() if text == b"<|im_end|>")
    assert replacements.apply("abbax") == (chr(DRAFT_BASE + end) + "x", "")
    assert replacements.apply("zab") == ("z", "ab")


@pytest.mark.parametrize(
    ("template", "user"),
    [
        ("{{'<|im_start|>' + role}}", "<|im_start|>user\n"),
        (
            "<|start_header_id|>{{ role }}<|end_header_id|>",
            "<|start_header_id|>user<|end_header_id|>\n\n",
        ),
        ("{{ bos_token }}<start_of_turn>", "<start_of_turn>user\n"),
        ("<|turn>model\\n", "<|turn>user\n"),
        ("[INST] {{ text }} [/INST]", "[INST]"),
    ],
)
def test_known_template_families_are_told_apart(template: str, user: str) -> None:
    family = find_family(template)
    assert family is not None
    assert family.user == user


def test_families_with_the_same_roles_are_told_apart_by_how_they_close() -> None:
    phi, zephyr = map(find_family, ("<|user|>\n<|end|>", "<|user|>\n{{ eos_token }}"))
    assert phi is not None
    assert zephyr is not None
    assert (phi.close, zephyr.close) == ("<|end|>\n", "</s>\n")
    assert find_family("{{ messages }}") is None


def test_pairs_between_families_cover_a_whole_turn() -> None:
    pairs = dict(find_replacements("<start_of_turn>", "<|start_header_id|>"))
    chat = "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>"
    for source in sorted(pairs, key=len, reverse=True):
        chat = chat.replace(source, pairs[source])
    assert chat == (
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
    )
    assert find_replacements("<|im_start|>", "<|im_start|>") == []
    assert find_replacements("<|im_start|>", "unknown") == []


def test_pairs_of_the_command_line_are_read_with_their_line_ends() -> None:
    assert parse_pairs("<a>user\\n => <b>\n[c] => ") == [("<a>user\n", "<b>"), ("[c]", "")]
    assert parse_pairs(None) == []
    with pytest.raises(ConfigError, match="TARGET => DRAFT"):
        parse_pairs("no arrow")
