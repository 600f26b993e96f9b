"""Incremental UTF-8 decoding: a token may end inside a character."""

from __future__ import annotations

import codecs


class Utf8Decoder:
    """Holds back incomplete characters."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """Return the complete characters."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return the rest; an incomplete character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


def text_or_bytes(data: bytes) -> str | list[int]:
    """A token's bytes for JSON: text where they are valid UTF-8, else their values."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
