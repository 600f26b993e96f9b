"""Incremental UTF-8 decoding: a token may end inside a character."""

from __future__ import annotations

import codecs


def utf8_decoder() -> codecs.IncrementalDecoder:
    """Holds back an incomplete character, which becomes U+FFFD at the end."""
    return codecs.getincrementaldecoder("utf-8")("replace")


class CharCounter:
    """Counts the characters of a text that comes in pieces of UTF-8."""

    def __init__(self) -> None:
        self.num_chars = 0  # complete ones
        self._decoder = utf8_decoder()

    def add(self, data: bytes) -> None:
        self.num_chars += len(self._decoder.decode(data))


def text_or_bytes(data: bytes) -> str | list[int]:
    """A token's bytes for JSON: text if they are valid UTF-8, else their values."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
