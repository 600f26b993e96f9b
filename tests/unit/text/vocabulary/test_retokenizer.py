"""Growing text against tokenizing it anew every time."""

from __future__ import annotations

import random

import pytest
from tests.unit.text.vocabulary import real
from tests.unit.text.vocabulary.texts import random_text

from headstart.testing import ByteVocab
from headstart.text.vocabulary.retokenizer import LOOKBEHIND, Retokenizer
from headstart.text.vocabulary.table import Encoder


class LossyVocab(ByteVocab):
    """Has no token for tabs and for 0xff."""

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = super().tokenize(text, add_special=add_special, parse_special=parse_special)
        return [token for token in tokens if token not in (9, 255)]

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in (9, 255) else super().token_bytes(token)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(real.vocab("demo-target"))


@pytest.mark.parametrize(
    "text", [b"a" * 900, b"=" * 900, b" " * 900, b"ab_" * 300, "中文模型".encode() * 80]
)
def test_text_without_words_is_cut_by_length_and_still_right(encoder: Encoder, text: bytes) -> None:
    stream = Retokenizer(encoder)
    for start in range(0, len(text), 7):
        stream.append(text[start : start + 7])
        assert len(stream.snapshot()[2]) <= 2 * LOOKBEHIND + 32
    assert stream.tokens == encoder.encode(text)


def test_restored_stream_continues_like_one_that_never_went_further(encoder: Encoder) -> None:
    rng = random.Random(1)
    for _ in range(30):
        begin, wrong, right = (random_text(rng) for _ in range(3))
        stream, fresh = Retokenizer(encoder), Retokenizer(encoder)
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


def test_control_tokens_part_the_text(encoder: Encoder) -> None:
    stream = Retokenizer(encoder)
    stream.append(b"hel")
    stream.append_tokens([1, 2])
    stream.append(b"lo")
    assert stream.tokens == [*encoder.encode(b"hel"), 1, 2, *encoder.encode(b"lo")]


def test_broken_character_before_a_control_token_is_spelled(encoder: Encoder) -> None:
    stream = Retokenizer(encoder)
    stream.append(b"x\xf0\x9f")
    assert (stream.tokens, stream.partial) == (encoder.encode(b"x"), b"\xf0\x9f")
    stream.append_tokens([1])
    assert stream.tokens == [*encoder.encode(b"x\xf0\x9f"), 1]


def test_bytes_without_a_token_are_left_out_and_nothing_else() -> None:
    vocab = LossyVocab()
    stream = Retokenizer(Encoder(vocab))
    text = b"\tab\t\xff c(\xff\xff\td)\t e\t\t" * 20
    for start in range(0, len(text), 3):
        stream.append(text[start : start + 3])
    assert bytes(stream.tokens) == text.replace(b"\t", b"").replace(b"\xff", b"")
