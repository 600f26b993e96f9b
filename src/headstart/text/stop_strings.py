"""Finds stop strings in a growing text."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.structures.prefix import num_begun


class StopStrings:
    """Holds back bytes that may begin a stop string.

    Memory and time per call depend on the longest stop string and the bytes fed, not on the text.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._stops = tuple(stops)
        self._held = b""
        self.found = b""  # the stop string that ended the text

    def feed(self, piece: bytes) -> bytes:
        """The bytes that are certain to be text; a stop string ends it, see `found`."""
        if not self._stops:
            return piece
        held = self._held + piece
        found = [(held.find(stop), -len(stop), stop) for stop in self._stops if stop in held]
        if found:
            start, _, stop = min(found)  # the earliest; of two at one place the longer
            self._held, self.found = b"", stop
            return held[:start]
        keep = num_begun(held, self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> bytes:
        """The bytes still held back: the text ended without a stop string."""
        held, self._held = self._held, b""
        return held


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
