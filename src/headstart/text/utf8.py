"""Incremental UTF-8 decoding: a token may end inside a character."""

from __future__ import annotations

import codecs


def utf8_decoder() -> codecs.IncrementalDecoder:
    """Holds back an incomplete character, which becomes U+FFFD at the end."""
    return codecs.getincrementaldecoder("utf-8")("replace")


def text_or_bytes(data: bytes) -> str | list[int]:
    """A token's bytes for JSON: text if they are valid UTF-8, else their values."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
