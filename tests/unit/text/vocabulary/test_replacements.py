"""Markers rewritten between chat templates."""

from __future__ import annotations

import random

import pytest
from tests.unit.text.vocabulary import real

from headstart.text.vocabulary.replacements import (
    DRAFT_BASE,
    TARGET_BASE,
    Replacements,
    parse_pairs,
    symbols_of,
)
from headstart.text.vocabulary.table import VocabTable, read_table
from headstart.text.vocabulary.templates import find_family, find_replacements
from headstart.types.errors import ConfigError


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


def test_known_template_families_are_told_apart() -> None:
    assert find_family("{{'<|im_start|>' + role}}") == "chatml"
    assert find_family("<|start_header_id|>{{ role }}<|end_header_id|>") == "llama-3"
    assert find_family("{{ bos_token }}<start_of_turn>") == "gemma"
    assert find_family("<|turn>model\\n") == "gemma-4"
    assert find_family("[INST] {{ text }} [/INST]") == "mistral"
    assert find_family("<|user|>\n{{ text }}<|end|>") == "phi-3"
    assert find_family("<|user|>\n{{ text }}{{ eos_token }}") == "zephyr"
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
