"""Tokenizing a piece of text byte for byte, and a growing one as if it were tokenized anew."""

from __future__ import annotations

import random

import pytest
from tests.security.test_long_text import check_same
from tests.unit.text.vocabulary import real
from tests.unit.text.vocabulary.pieces import PieceVocab
from tests.unit.text.vocabulary.real import random_text

from headstart.testing import ByteVocab
from headstart.text.vocabulary.retokenizer import LOOKBEHIND, Retokenizer
from headstart.text.vocabulary.table import Encoder, num_incomplete, read_table
from headstart.text.vocabulary.variants import variants

NAMES = (*real.DEMO, *real.FETCHED)


@pytest.fixture(params=NAMES, scope="module")
def encoder(request: pytest.FixtureRequest) -> Encoder:
    name = request.param
    if name not in real.DEMO and not real.has_fetched():
        pytest.skip(f"no vocabularies in {real.fetched_folder()}; run python tests/fetch_vocabs.py")
    return Encoder(real.vocab(name))


def test_tokens_stand_for_the_very_bytes_and_are_never_markers(encoder: Encoder) -> None:
    rng = random.Random(1)
    for _ in range(60):
        text = random_text(rng)
        tokens = list(encoder.encode(text))
        assert encoder.table.join(tokens) == text
        assert not set(tokens) & set(encoder.table.controls)


def test_plain_text_is_tokenized_as_the_model_does(encoder: Encoder) -> None:
    name = next(
        name for name in NAMES if read_table(real.vocab(name)).pieces == encoder.table.pieces
    )
    own = real.vocab(name).tokenize(
        b"def add(a, b):\n    return a + b", add_special=False, parse_special=False
    )
    # SentencePiece begins with a space of its own
    has_space = encoder.table.join(own).startswith(b" ")
    assert list(encoder.encode(b" " * has_space + b"def add(a, b):\n    return a + b")) == own


def test_a_long_text_in_parts_has_the_tokens_of_the_whole(encoder: Encoder, monkeypatch) -> None:
    assert check_same(encoder._vocab, monkeypatch) >= 3


def test_unfinished_characters_are_counted() -> None:
    for character in ("a", "é", "中", "😀"):
        raw = character.encode()
        for length in range(1, len(raw) + 1):
            assert num_incomplete(b"x" + raw[:length]) == (length if length < len(raw) else 0)
    assert not any(num_incomplete(text) for text in (b"", b"\x80", b"\xff", b"x" + b"\x80" * 4))


class CarelessVocab(ByteVocab):
    """Puts a space before every text, knows capital letters twice and swallows question marks; has
    a token `a.`.
    """

    size = 260

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        return list(b" " + raw.replace(b"?", b""))

    def token_bytes(self, token: int) -> bytes:
        return super().token_bytes(token) if token < 258 else (b"A", b"a.")[token - 258]


def test_what_a_tokenizer_adds_or_drops_is_made_good() -> None:
    vocab = CarelessVocab()
    encoder = Encoder(vocab)
    assert bytes(encoder.encode(b"b c")) == b"b c"
    assert bytes(encoder.encode(b"why? " * 30)) == b"why? " * 30


def test_of_two_tokens_with_the_same_bytes_the_tokenizers_own_counts() -> None:
    assert read_table(CarelessVocab()).ids[b"A"] == ord("A")


def test_word_does_not_end_where_a_token_reaches_over() -> None:
    ends = read_table(CarelessVocab()).word_ends
    pairs = (b"a.", b"b.", b"a ", b"ab", b".a", b" a")
    assert [ends[a << 8 | b] for a, b in pairs] == [0, 1, 1, 0, 0, 0]


WORDS = (b"(", b" ", b".", b"count", b" count", b"(count", b"total", b" total", b"un", b"ts")
VOCAB = PieceVocab(list(dict.fromkeys([*WORDS, *(bytes([byte]) for byte in range(256))])))


def spell(text: bytes) -> list[int]:
    return VOCAB.tokenize(text, add_special=False, parse_special=False)


def test_every_spelling_of_the_word_follows_from_one() -> None:
    found = list(variants(VOCAB, spell(b" count"), spell(b" total")))
    assert (spell(b"count"), spell(b"total")) in found
    assert (spell(b"(count"), spell(b"(total")) in found


def test_common_tokens_in_front_are_not_part_of_a_replacement() -> None:
    for old, new in variants(VOCAB, spell(b" count"), spell(b" total")):
        assert old[0] != new[0]


def test_a_word_that_only_grew_leaves_nothing_to_replace() -> None:
    assert spell(b" counts")[0] == spell(b" count")[0]
    assert all(old and new for old, new in variants(VOCAB, spell(b" count"), spell(b" counts")))


@pytest.mark.parametrize(
    ("old", "new"),
    [(b" +", b" total"), (b"count", b"1+1"), (b"count", b""), (b"  count", b"total")],
)
def test_what_is_not_a_word_for_a_word_has_no_other_spelling(old: bytes, new: bytes) -> None:
    assert list(variants(VOCAB, spell(old), spell(new))) == []


class LossyVocab(ByteVocab):
    """Has no token for tabs and for 0xff."""

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = super().tokenize(text, add_special=add_special, parse_special=parse_special)
        return [token for token in tokens if token not in (9, 255)]

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in (9, 255) else super().token_bytes(token)


@pytest.fixture(scope="module")
def demo_encoder() -> Encoder:
    return Encoder(real.vocab("demo-target"))


@pytest.mark.parametrize(
    "text", [b"a" * 900, b"=" * 900, b" " * 900, b"ab_" * 300, "中文模型".encode() * 80]
)
def test_text_without_words_is_cut_by_length_and_still_right(demo_encoder, text) -> None:
    stream = Retokenizer(demo_encoder)
    for start in range(0, len(text), 7):
        stream.append(text[start : start + 7])
        assert len(stream.snapshot()[2]) <= 2 * LOOKBEHIND + 32
    assert stream.tokens == demo_encoder.encode(text)


def test_restored_stream_continues_like_one_that_never_went_further(demo_encoder: Encoder) -> None:
    rng = random.Random(1)
    for _ in range(30):
        begin, wrong, right = (random_text(rng) for _ in range(3))
        stream, fresh = Retokenizer(demo_encoder), Retokenizer(demo_encoder)
        stream.append(begin)
        fresh.append(begin)
        state = stream.snapshot()
        stream.append(wrong)
        stream.append_tokens([1])
        stream.restore(state)
        assert stream.tokens == fresh.tokens
        stream.append(right)
        fresh.append(right)
        assert stream.tokens == fresh.tokens
        assert stream.partial == fresh.partial


def test_control_tokens_part_the_text(demo_encoder: Encoder) -> None:
    stream = Retokenizer(demo_encoder)
    stream.append(b"hel")
    stream.append_tokens([1, 2])
    stream.append(b"lo")
    assert stream.tokens == [*demo_encoder.encode(b"hel"), 1, 2, *demo_encoder.encode(b"lo")]


def test_broken_character_before_a_control_token_is_spelled(demo_encoder: Encoder) -> None:
    stream = Retokenizer(demo_encoder)
    stream.append(b"x\xf0\x9f")
    assert (stream.tokens, stream.partial) == (demo_encoder.encode(b"x"), b"\xf0\x9f")
    stream.append_tokens([1])
    assert stream.tokens == [*demo_encoder.encode(b"x\xf0\x9f"), 1]


def test_bytes_without_a_token_are_left_out_and_nothing_else() -> None:
    vocab = LossyVocab()
    stream = Retokenizer(Encoder(vocab))
    text = b"\tab\t\xff c(\xff\xff\td)\t e\t\t" * 20
    for start in range(0, len(text), 3):
        stream.append(text[start : start + 3])
    assert bytes(stream.tokens) == text.replace(b"\t", b"").replace(b"\xff", b"")
