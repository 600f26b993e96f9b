from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headstart.text.utf8 import Utf8Decoder, text_or_bytes


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_pieces_decode_to_the_whole(data, cuts):
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = Utf8Decoder()
    pieces = [decoder.feed(data[start:end]) for start, end in itertools.pairwise(bounds)]
    assert "".join(pieces) + decoder.finish() == data.decode("utf-8", "replace")


@given(st.text(min_size=1))
def test_no_replacement_appears_before_the_end(text):
    decoder = Utf8Decoder()
    assert "".join(decoder.feed(bytes([byte])) for byte in text.encode()) == text


def test_bytes_that_are_not_text_are_listed():
    assert text_or_bytes("ö".encode()) == "ö"
    assert text_or_bytes(b"\xc3") == [0xC3]
