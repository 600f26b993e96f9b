"""Follow a text while it is copied from another place, with changes.

An edit copies most of a text and replaces the same few things again and again: a renamed variable, a changed
argument. When the text leaves the copy, its tokens are kept until two of them show where it goes on in the source:

    source   ... f ( old , x ) ...            learned: old -> new
    text     ... f ( new , x )                expected from now on wherever the source says `old`

So a copy does not end at a change, and a change that was made before is drafted. Scores are shares of counts: tokens
followed against times left (as in `structures/shares.py`), changes made against changes not made.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from headstart.structures.suffix_index import SEPARATOR, Place, SuffixIndex

ANCHOR = 2  # equal tokens that show where the text goes on
LONGEST_OLD, LONGEST_NEW = 8, 12  # tokens of a change
MAX_CHANGES = 64


@dataclass(slots=True)
class Change:
    """Tokens of the source that were replaced; neither side is empty, and they begin differently."""

    old: array[int]
    new: array[int]
    made: int = 1  # times
    kept: int = 0  # times that the text had `old` again

    @property
    def share(self) -> float:
        """Chance that it is made next time."""
        return (self.made + 0.5) / (self.made + self.kept + 1.0)


class Alignment:
    """Where a text stands in the source it is copied from, and the changes made on the way.

    Changes hold for the rest of the text, also when it is copied from somewhere else later.
    """

    __slots__ = ("_changes", "_limit", "_num_changes", "_written", "index", "position", "run")

    def __init__(self) -> None:
        self.index: SuffixIndex | None = None  # of the source; None: not copying
        self.position = 0  # of the next token in the source; after leaving, where that happened
        self.run = 0  # tokens since the copy was left unexpectedly
        self._written = array("i")  # since the copy was left
        self._limit = 0  # of the source, which may be the beginning of the text itself
        self._changes: dict[int, list[Change]] = {}  # by first old token
        self._num_changes = 0

    @property
    def has_changes(self) -> bool:
        return self._num_changes > 0

    def start(self, index: SuffixIndex, place: Place) -> None:
        """The text is copied from here on."""
        self.index, self.position, self.run = index, place.position, place.length
        del self._written[:]

    def stop(self) -> None:
        """The text is not copied any more."""
        self.index = None
        del self._written[:]

    def follow(self, emitted: Sequence[int]) -> None:
        """The text grows by these tokens; call it before an index of the text gets them. O(1) per token."""
        for token in emitted:
            index = self.index
            if index is None:
                return
            if not index.floor < self.position < len(index.tokens):
                self.stop()
            elif not self._written and token == index.tokens[self.position]:
                if token in self._changes:
                    self._note_kept(index)
                self.position += 1
                self.run += 1
            else:
                if not self._written:
                    self._limit = len(index.tokens)
                self._written.append(token)
                self._rejoin(index)

    def place(self, index: SuffixIndex) -> Place | None:
        """Where the text goes on in this index, if it is being copied from there."""
        if self.index is not index or self._written or not index.floor < self.position < len(index.tokens):
            return None
        return Place(self.run, self.position) if index.tokens[self.position] != SEPARATOR else None

    def rewrite(self, source: Sequence[int]) -> tuple[list[int], dict[int, float]]:
        """What a copy becomes with the changes made so far, and the chances of the tokens where they count."""
        tokens: list[int] = []
        chances: dict[int, float] = {}
        at = 0
        while at < len(source):
            change = self._known(source[at : at + LONGEST_OLD]) if source[at] in self._changes else None
            if change is not None:
                share = change.share
                chances[len(tokens)] = max(share, 1.0 - share)
                if share > 0.5:
                    tokens += change.new
                    at += len(change.old)
                    continue
            tokens.append(source[at])
            at += 1
        return tokens, chances

    def _known(self, source: Sequence[int]) -> Change | None:
        """The longest change whose old tokens `source` begins with."""
        best = None
        for change in self._changes.get(source[0], ()):
            size = len(change.old)
            if list(source[:size]) == change.old.tolist() and (
                best is None or (size, change.made) >= (len(best.old), best.made)
            ):
                best = change
        return best

    def _under_way(self, index: SuffixIndex) -> Change | None:
        """The known change that has been written up to here, if it is one."""
        source = index.tokens[self.position : self.position + LONGEST_OLD]
        written, size = self._written, len(self._written)
        for change in self._changes.get(source[0], ()):
            if change.new[:size] == written and source[: len(change.old)] == change.old:
                return change
        return None

    def _note_kept(self, index: SuffixIndex) -> None:
        change = self._known(index.tokens[self.position : self.position + LONGEST_OLD])
        if change is not None:
            change.kept += 1

    def _rejoin(self, index: SuffixIndex) -> None:
        """After a token that the source does not have: is the text back in it?"""
        change = self._under_way(index)
        if change is not None:
            if len(change.new) == len(self._written):
                change.made += 1
                self.position += len(change.old)
                self.run += 1
                del self._written[:]
            return
        written, size = self._written, len(self._written) - ANCHOR
        if size < 0:
            return
        source = index.tokens[self.position : min(self._limit, self.position + LONGEST_OLD + ANCHOR)]
        anchor = written[size:]
        for skipped in range(len(source) - ANCHOR + 1):
            if source[skipped : skipped + ANCHOR] == anchor:
                self._learn(source[:skipped], written[:size], anchor[:1])
                self.position += skipped + ANCHOR
                self.run = ANCHOR
                del written[:]
                return
        if size >= LONGEST_NEW:
            self.stop()

    def _learn(self, old: array[int], new: array[int], following: array[int]) -> None:
        """Remember a change. What is only left out is told by the token that follows it; what is only put in, not."""
        if not old or self._num_changes >= MAX_CHANGES:
            return
        change = Change(old, new) if new else Change(old + following, following)
        self._changes.setdefault(old[0], []).append(change)
        self._num_changes += 1
