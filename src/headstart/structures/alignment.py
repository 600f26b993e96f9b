"""Follow a text while it is copied from another place, with changes.

An edit copies most of a text and replaces the same few things again and again: a renamed variable, a changed
argument. When the text leaves the copy, its tokens are kept until two of them show where it goes on in the source:

    source   ... f ( old , x ) ...            learned: old -> new
    text     ... f ( new , x )                expected from now on wherever the source says `old`

So a copy does not end at a change, and a change that was made before is drafted. Scores are shares of counts: tokens
followed against times left (as in `structures/shares.py`), changes made against changes not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headstart.structures.suffix_index import SEPARATOR, Place, SuffixIndex

ANCHOR = 2  # equal tokens that show where the text goes on
LONGEST_OLD, LONGEST_NEW = 8, 12  # tokens of a change
MAX_CHANGES = 64
TRUST = 4  # tokens followed before a change that still speak for the copy after it
HUNCH = 2  # what one equal token close behind a change counts for, in equal tokens
WEAK = 3  # equal tokens with which another place does not end the search for where the text goes on


Variants = Callable[[Sequence[int], Sequence[int]], Iterable[tuple[list[int], list[int]]]]
"""(old tokens, new tokens) -> further changes that follow from this one."""


@dataclass(slots=True)
class Change:
    """Tokens of the source that were replaced; neither side is empty, and they begin differently."""

    old: list[int]
    new: list[int]
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

    __slots__ = ("_changes", "_limit", "_num_changes", "_variants", "_written", "index", "position", "run")

    def __init__(self, variants: Variants | None = None) -> None:
        """`variants` knows what else changes when this does."""
        self._variants = variants
        self.index: SuffixIndex | None = None  # of the source; None: not copying
        self.position = 0  # of the next token in the source; after leaving, where that happened
        self.run = 0  # tokens since the copy was left unexpectedly
        self._written: list[int] = []  # since the copy was left
        self._limit = 0  # of the source, which may be the beginning of the text itself
        self._changes: dict[int, list[Change]] = {}  # by first old token
        self._num_changes = 0

    @property
    def is_exact(self) -> bool:
        """Whether there is a next token to copy."""
        return self.exact() is not None

    def exact(self) -> tuple[SuffixIndex, Place] | None:
        """Where the next token stands while the text is copied token by token."""
        index, position = self.index, self.position
        if index is None or self._written or not index.floor < position < len(index.tokens):
            return None
        return (index, Place(self.run, position)) if index.tokens[position] != SEPARATOR else None

    def start(self, index: SuffixIndex, place: Place) -> None:
        """This place was drafted from: the text is copied from here, unless that is little more than a guess."""
        if (self._written and place.length <= WEAK) or place == self.place(index):
            return
        self.index, self.position, self.run = index, place.position, place.length
        del self._written[:]

    def stop(self) -> None:
        """The text is not copied any more."""
        self.index = None
        del self._written[:]

    def follow(self, emitted: Sequence[int]) -> None:
        """The text grows by these tokens; call it before an index of the text gets them. O(1) per token."""
        if self._follow_copy(emitted):
            return
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

    def _follow_copy(self, emitted: Sequence[int]) -> bool:
        """The common case at once: all of it is copied, and none of it was ever changed."""
        exact = self.exact()
        if exact is None or not self._changes.keys().isdisjoint(emitted):
            return False
        size = len(emitted)
        if exact[0].tokens[self.position : self.position + size].tolist() != emitted:
            return False
        self.position += size
        self.run += size
        return True

    def place(self, index: SuffixIndex) -> Place | None:
        """Where the text goes on in this index, if it is being copied from there."""
        if self.index is not index:
            return None
        if self._written:
            return self._hunch(index)
        exact = self.exact()
        return None if exact is None else exact[1]

    def rewrite(self, source: list[int], scores: Sequence[float]) -> tuple[list[int], Sequence[float]]:
        """A copy with the changes made so far; `scores` are the chances of its tokens, given those before."""
        if self._changes.keys().isdisjoint(source):
            return source, scores
        tokens: list[int] = []
        chances: list[float] = []
        done = 0
        for at in [i for i, token in enumerate(source) if token in self._changes]:
            change = self._known(source[at : at + LONGEST_OLD]) if at >= done else None
            if change is not None:
                tokens += source[done:at]
                chances += scores[done:at]
                tokens += change.new
                chances += [scores[at] * change.share, *[scores[at]] * (len(change.new) - 1)]
                done = at + len(change.old)
        tokens += source[done:]
        chances += scores[done:]
        return tokens, chances

    def _hunch(self, index: SuffixIndex) -> Place | None:
        """Where the text may go on after a change: behind the next token that equals its last one."""
        tokens, first, last = index.tokens, self.position + 1, self._written[-1]
        for at in range(first, min(self._limit - 1, first + LONGEST_OLD)):
            if tokens[at] == last:
                is_end = tokens[at + 1] == SEPARATOR or self._under_way(index) is not None
                return None if is_end else Place(HUNCH, at + 1)
        return None

    def _known(self, source: list[int]) -> Change | None:
        """The longest change whose old tokens `source` begins with; of several the one made most."""
        best, rank = None, (0, 0)
        for change in self._changes.get(source[0], ()):
            old = change.old
            if source[: len(old)] == old and (len(old), change.made) > rank:
                best, rank = change, (len(old), change.made)
        return best

    def _under_way(self, index: SuffixIndex) -> Change | None:
        """The known change that has been written up to here, if it is one."""
        source = index.tokens[self.position : self.position + LONGEST_OLD].tolist()
        written, size = self._written, len(self._written)
        for change in self._changes.get(source[0], ()):
            if change.new[:size] == written and source[: len(change.old)] == change.old:
                return change
        return None

    def _note_kept(self, index: SuffixIndex) -> None:
        """The text has the old tokens of a change again; one that is mostly not made is forgotten."""
        change = self._known(index.tokens[self.position : self.position + LONGEST_OLD].tolist())
        if change is None:
            return
        change.kept += 1
        if change.kept > change.made:
            token, self._num_changes = change.old[0], self._num_changes - 1
            self._changes[token] = [other for other in self._changes[token] if other is not change]
            if not self._changes[token]:
                del self._changes[token]

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
        source = index.tokens[self.position : min(self._limit, self.position + LONGEST_OLD + ANCHOR)].tolist()
        anchor = written[size:]
        for skipped in range(len(source) - ANCHOR + 1):
            if source[skipped : skipped + ANCHOR] == anchor:
                self._learn(source[:skipped], written[:size], anchor[:1])
                self.position += skipped + ANCHOR
                self.run = ANCHOR + min(TRUST, self.run)
                del written[:]
                return
        if size >= LONGEST_NEW:
            self.stop()

    def _learn(self, old: list[int], new: list[int], following: list[int]) -> None:
        """Remember a change. What is only left out is told by the token that follows it; what is only put in, not."""
        if not old:
            return
        if not new:
            old, new = old + following, following
        self._add(old, new)
        for variant in self._variants(old, new) if self._variants is not None else ():
            self._add(*variant)

    def _add(self, old: list[int], new: list[int]) -> None:
        known = self._changes.get(old[0], [])
        if self._num_changes < MAX_CHANGES and not any(c.old == old and c.new == new for c in known):
            self._changes[old[0]] = [*known, Change(old, new)]
            self._num_changes += 1
