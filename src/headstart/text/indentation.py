"""Ends a growing text before a line with too little indentation."""

from __future__ import annotations


class Indentation:
    """Checks every line but the first.

    The text ends at the first other byte, or end of line, before `minimum` spaces and tabs.
    """

    def __init__(self, minimum: int) -> None:
        self.is_over = False
        self._minimum = minimum
        self._missing = 0  # spaces and tabs that must still come

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
