"""Indentation of a growing text: ends it before a line that begins too far left."""

from __future__ import annotations


class Indentation:
    """Looks at the beginning of every line but the first.

    A byte that is no white space, or the end of an empty line, before `minimum` spaces and tabs
    ends the text.
    """

    def __init__(self, minimum: int) -> None:
        self.is_over = False
        self._minimum = minimum
        self._missing = 0  # spaces and tabs that must come before anything else

    def feed(self, piece: bytes) -> bytes:
        """Return the part of the piece that belongs to the text."""
        if not self._minimum:
            return piece
        for index, byte in enumerate(piece):
            if byte in b" \t":
                self._missing -= 1
            elif self._missing > 0:
                self.is_over = True
                return piece[:index]
            else:
                self._missing = self._minimum if byte == ord("\n") else 0
        return piece
