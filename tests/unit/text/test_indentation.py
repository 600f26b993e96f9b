"""Minimum indentation of a text that arrives in pieces."""

from __future__ import annotations

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from headstart.text.stop_strings import StopCriteria
from headstart.text.utf8 import text_or_bytes, utf8_decoder


def kept(text: bytes, minimum: int) -> bytes:
    """What stays of a whole text: all before the first line that begins too far left, its white
    space included.
    """
    for match in re.finditer(rb"\n([ \t]*)(?=[^ \t])", text):
        if len(match[1]) < minimum:
            return text[: match.end()]
    return text


def fed(pieces: list[bytes], minimum: int) -> tuple[bytes, bool]:
    indentation, out = StopCriteria((), minimum), b""
    for piece in pieces:
        out += indentation.feed(piece)
        if indentation.is_over:
            break
    return out, indentation.is_over


@given(st.lists(st.text(" \t\nab", max_size=4).map(str.encode), max_size=8), st.integers(0, 3))
def test_pieces_are_cut_as_the_whole_text_would_be(pieces: list[bytes], minimum: int) -> None:
    text = b"".join(pieces)
    expected = kept(text, minimum)
    assert fed(pieces, minimum) == (expected, expected != text)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_pieces_decode_to_the_whole(data, cuts):
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = utf8_decoder()
    pieces = [decoder.decode(data[start:end]) for start, end in itertools.pairwise(bounds)]
    assert "".join(pieces) + decoder.decode(b"", final=True) == data.decode("utf-8", "replace")


@given(st.text(min_size=1))
def test_no_replacement_appears_before_the_end(text):
    decoder = utf8_decoder()
    assert "".join(decoder.decode(bytes([byte])) for byte in text.encode()) == text


def test_bytes_that_are_not_text_are_listed():
    assert text_or_bytes("ö".encode()) == "ö"
    assert text_or_bytes(b"\xc3") == [0xC3]
