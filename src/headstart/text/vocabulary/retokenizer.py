"""Tokenizes a growing text incrementally.

The tokens of a prefix are not a prefix of the tokens of the whole: "hel" + "lo" is one token. But
only the end can change. Pre-tokenizers split after a word and at a space between two words, so
tokens before the last such boundary are final (unless a token crosses it, which is checked).
Without a boundary (CJK), tokens that end `LOOKBEHIND` bytes before the end are taken as final.
Tokens after a boundary do not depend on bytes before it: BPE applies merges by rank, and none
crosses the boundary. So only the window after it is tokenized again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from headstart.structures.prefix import common_prefix_length
from headstart.text.vocabulary.table import Encoder, num_incomplete

LOOKBEHIND = 64


Snapshot = tuple[int, int, bytes, bytes]
"""A state for `restore`: start, base, window and partial. Tokens before its start do not change."""


class Retokenizer:
    """Tokens of a growing byte stream, with given ones in between."""

    # tokens[0 : _start]               final; bytes 0 .. _base of the stream
    # tokens[_start : len(tokens)]     of _window, may change
    # partial                          begins a character that is not complete; no tokens yet

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.tokens: list[int] = []
        self.partial = b""
        self.num_stable = 0  # leading tokens unchanged since the caller last set this
        self._ends: list[int] = []  # stream position after each token
        self._start = 0
        self._base = 0
        self._window = b""

    @property
    def num_final(self) -> int:
        """Leading tokens that can no longer change."""
        return self._start

    def append(self, data: bytes) -> None:
        """The stream grew by `data`. O(window + data)."""
        window = self._window
        if (
            window
            and data
            and not self.partial
            and self._encoder.table.word_ends[window[-1] << 8 | data[0]]
        ):
            # the common case: a word follows, which is mostly cached
            self._freeze(len(self.tokens))
        text = self._window + self.partial + data
        complete = len(text) - num_incomplete(text)
        self.partial = text[complete:]
        self._rewrite(text[:complete])
        self._advance()

    def append_tokens(self, tokens: Sequence[int]) -> None:
        """Append tokens as they are; everything before is final, even an incomplete character."""
        if self.partial:
            text, self.partial = self._window + self.partial, b""
            self._rewrite(text)
        self.tokens += tokens
        self._base += len(self._window)
        self._ends += [self._base] * len(tokens)
        self._window = b""
        self._start = len(self.tokens)

    def snapshot(self) -> Snapshot:
        return self._start, self._base, self._window, self.partial

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to an earlier state of this stream. O(window)."""
        self._start, self._base, window, self.partial = snapshot
        del self.tokens[self._start :], self._ends[self._start :]
        self.num_stable = min(self.num_stable, self._start)
        self._rewrite(window)

    def _rewrite(self, window: bytes) -> None:
        if window == self._window and len(self.tokens) > self._start:
            return
        fresh = self._encoder.encode(window)
        start, old = self._start, self.tokens[self._start :]
        same = common_prefix_length(old, list(fresh))
        pieces = self._encoder.table.pieces
        position = self._ends[start + same - 1] if same else self._base
        self.tokens[start + same :] = fresh[same:]
        lengths = (len(pieces[token]) for token in fresh[same:])
        self._ends[start + same :] = list(accumulate(lengths, initial=position))[1:]
        self.num_stable = min(self.num_stable, start + same)
        covered = self._ends[-1] - self._base if fresh else 0
        # bytes without a token are left out
        self._window = window if covered == len(window) else self._encoder.table.join(fresh)

    def _advance(self) -> None:
        """Move the window's start to the last boundary."""
        ends, base, window = self._ends, self._base, self._window
        cut = len(window)
        while (cut := last_split(window, cut, self._encoder.table.word_ends)) > 0:
            index = bisect_left(ends, base + cut, self._start)
            if index < len(ends) and ends[index] == base + cut:
                self._freeze(index + 1)
                return
        if len(window) > 2 * LOOKBEHIND:
            index = bisect_right(ends, base + len(window) - LOOKBEHIND, self._start)
            if index > self._start:
                self._freeze(index)

    def _freeze(self, start: int) -> None:
        end = self._ends[start - 1]
        self._window = self._window[end - self._base :]
        self._start, self._base = start, end


def last_split(text: bytes, before: int, word_ends: bytes) -> int:
    """Last position under `before` where every pre-tokenizer splits; 0 if there is none."""
    for position in range(min(before, len(text)) - 1, 0, -1):
        byte, last = text[position], text[position - 1]
        if word_ends[last << 8 | byte]:
            return position
        if byte == 32 and last > 32 and text[position + 1 : position + 2] > b" ":
            return position
    return 0
