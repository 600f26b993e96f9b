"""The reasoning budget: after `max_tokens` tokens, the tokens that end the reasoning are forced.

The state depends only on the emitted tokens, so drafts do not change the text. Source: llama.cpp's
common/reasoning-budget.cpp, for what counts and when the end is forced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstart.text.vocabulary.table import num_incomplete
from headstart.types.constraint import NO_LIMIT, ThoughtLimit


class ThoughtCounter:
    """Counts one answer's reasoning tokens."""

    def __init__(self, limit: ThoughtLimit, spelling: Callable[[int], bytes]) -> None:
        """`spelling` returns a token's text, including that of control tokens."""
        self._limit = limit
        self._spelling = spelling
        self._is_thinking = limit.is_thinking
        self._num_left = limit.max_tokens
        self._num_closed = 0  # closing tokens read so far
        self._tail = b""  # of the text: may begin a marker or a character

    @property
    def num_free(self) -> int:
        """Tokens that may precede the forced end of the reasoning."""
        return max(1, self._num_left) if self._is_thinking and not self.closing() else NO_LIMIT

    def closing(self) -> Sequence[int]:
        """The forced tokens at this point; empty if there is a choice."""
        if not self._is_thinking or self._num_left > 0 or num_incomplete(self._tail):
            return ()
        return self._limit.closing[self._num_closed :]

    def end(self) -> None:
        """Use up the budget of open thoughts: their end is forced from here on."""
        self._num_left = 0

    def read(self, token: int) -> None:
        if self.closing():
            self._num_closed += 1
            if self._num_closed == len(self._limit.closing):
                self._switch()
            return
        limit = self._limit
        marks = limit.ends if self._is_thinking else (limit.start,)
        if not marks[0]:
            return
        text = self._tail + self._spelling(token)
        self._tail = text[-max(4, *map(len, marks)) :]
        if any(mark in text for mark in marks):
            self._switch()
        elif self._is_thinking:
            self._num_left -= 1

    def _switch(self) -> None:
        """Begin or end thoughts."""
        self._is_thinking, self._tail = not self._is_thinking, b""
        self._num_left, self._num_closed = self._limit.max_tokens, 0
