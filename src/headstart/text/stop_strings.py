"""Finds the end of a growing text."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.structures.prefix import num_begun


class StopCriteria:
    """Where a text ends: at a stop string, or where a line other than the first begins with fewer
    than `min_indent` spaces and tabs.

    Bytes that may begin a stop string are held back. Memory and time per call depend on the longest
    stop string and the bytes fed, not on the text.
    """

    def __init__(self, stops: Sequence[bytes], min_indent: int = 0) -> None:
        self._stops, self._min_indent = tuple(stops), min_indent
        self._held = b""
        self._missing = 0  # spaces and tabs that must still come
        self.found = b""  # the stop string that ended the text
        self.is_over = False

    def feed(self, piece: bytes) -> bytes:
        """The bytes that are certain to be text, and to come before its end."""
        if self._min_indent:
            piece = self._indented(piece)
        if not self._stops:
            return piece
        held = self._held + piece
        found = [(held.find(stop), -len(stop), stop) for stop in self._stops if stop in held]
        if found:
            start, _, stop = min(found)  # the earliest; of two at one place the longer
            self._held, self.found, self.is_over = b"", stop, True
            return held[:start]
        keep = num_begun(held, self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def _indented(self, piece: bytes) -> bytes:
        """The part of a piece before the first other byte, or end of line, that comes too early."""
        for index, byte in enumerate(piece):
            if byte in b" \t":
                self._missing -= 1
            elif self._missing > 0:
                self.is_over = True
                return piece[:index]
            else:
                self._missing = self._min_indent if byte == ord("\n") else 0
        return piece

    def flush(self) -> bytes:
        """The bytes still held back: the text ended without a stop string."""
        held, self._held = self._held, b""
        return held
