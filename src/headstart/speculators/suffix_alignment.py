"""Follows a text while it is copied from another place, with changes.

An edit copies most of a text and replaces the same few things repeatedly: a renamed variable, a
changed argument. When the text departs from the copy, its tokens are kept until two of them show
where it resumes in the source:

    source   ... f ( old , x ) ...            learned: old -> new
    text     ... f ( new , x )                expected from now on wherever the source says `old`

So a copy does not end at a change, and known changes are drafted. Scores are shares of counts:
tokens followed against departures (as in `base_texts.py`), changes made against changes not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, islice

from headstart.structures.prefix import common_prefix_length
from headstart.structures.suffix_index import SEPARATOR, Place, SuffixIndex

# equal tokens that show where the text resumes; one that comes soon after a change counts as many
ANCHOR = 2
# tokens of a change; a pure deletion includes the next token on both sides
LONGEST_OLD, LONGEST_NEW = 8, 12
MAX_FURTHER = 3  # derived changes per step: each takes time


Variants = Callable[[Sequence[int], Sequence[int]], Iterable[tuple[list[int], list[int]]]]
"""(old tokens, new tokens) -> derived changes, computed lazily."""


@dataclass(slots=True)
class Change:
    """Tokens of the source and their replacement; never empty, and different in the first token."""

    old: list[int]
    new: list[int]
    made: int = 1  # times
    kept: int = 0  # times that the text kept `old`

    @property
    def share(self) -> float:
        """Probability that it is made next time."""
        return (self.made + 0.5) / (self.made + self.kept + 1.0)


class Alignment:
    """Position of a text in the source it is copied from, and the changes made so far.

    Changes apply to the rest of the text, even if it is copied from elsewhere later.
    """

    __slots__ = (
        "_changes",
        "_further",
        "_limit",
        "_num_changes",
        "_variants",
        "_written",
        "index",
        "position",
        "run",
    )

    def __init__(self, variants: Variants | None = None) -> None:
        """`variants` derives further changes from one."""
        self._variants = variants
        self.index: SuffixIndex | None = None  # of the source; None: not copying
        self.position = 0  # of the next token in the source; after a departure, of that
        self.run = 0  # tokens since the last unexpected departure
        self._written: list[int] = []  # since the departure
        self._limit = 0  # of the source, which may be the beginning of the text itself
        self._changes: dict[int, list[Change]] = {}  # by first old token
        self._num_changes = 0
        # derived changes, newest last
        self._further: list[Iterator[tuple[list[int], list[int]]]] = []

    def exact(self) -> Place | None:
        """Position of the next token in `index` while the text is copied exactly."""
        index, position = self.index, self.position
        if index is None or self._written or not index.floor < position < len(index.tokens):
            return None
        return None if index.tokens[position] == SEPARATOR else (self.run, position)

    def start(self, index: SuffixIndex, place: Place) -> None:
        """Copy from this place, which was drafted from, unless the match is weak (at most 3 tokens)
        and a resume point is still sought.
        """
        if self._written and place[0] <= 3:  # guessed places are weak, too
            return
        self.index, (self.run, self.position) = index, place
        self._written.clear()

    def stop(self) -> None:
        self.index = None
        self._written.clear()

    def follow(self, emitted: Sequence[int]) -> None:
        """Append tokens to the text, before an index of the text gets them. O(1) per token."""
        at, emitted = 0, list(emitted)  # a list, like slices of the source
        while at < len(emitted):
            index = self.index
            if index is None:
                break
            if not self._written:
                at += self._follow_copy(index, emitted[at:] if at else emitted)
                if at == len(emitted):
                    break
                self._limit = len(index.tokens)
            if not index.floor < self.position < len(index.tokens):
                self.stop()
                break
            self._written.append(emitted[at])
            self._rejoin(index)
            at += 1
        if self._further:
            self._learn_further()

    def _follow_copy(self, index: SuffixIndex, emitted: list[int]) -> int:
        """Follow tokens up to the first that differs from the source; returns how many."""
        position, size = self.position, len(emitted)
        if position <= index.floor:
            return 0
        source = index.tokens[position : position + size + LONGEST_OLD + 1].tolist()
        if source[:size] != emitted:
            size -= 1
            if source[:size] != emitted[:size]:
                size = common_prefix_length(source, emitted)
        changes = self._changes
        if changes and not changes.keys().isdisjoint(emitted):
            for at in compress(range(size), map(changes.__contains__, emitted)):
                change = self._known(source, at)
                if change is not None:
                    self._note_kept(change)
        self.position += size
        self.run += size
        return size

    def place(self, longest: int = 0) -> Place | None:
        """Where the text resumes in `index`, if the match is longer than `longest` tokens."""
        if self._written:
            return self._next_place() if longest < ANCHOR else None
        return self.exact() if longest < self.run else None

    def rewrite(
        self, source: list[int], scores: Sequence[float], max_tokens: int
    ) -> tuple[list[int], Sequence[float]]:
        """Apply the changes made so far to the start of a copy, which may become longer; `scores`
        are the conditional probabilities of its tokens.
        """
        changes = self._changes
        if not changes or changes.keys().isdisjoint(source):
            return source, scores
        tokens: list[int] = []
        chances: list[float] = []
        done = 0
        for at in compress(range(len(source)), map(changes.__contains__, source)):
            change = self._known(source, at) if at >= done else None
            if change is not None:
                tokens += source[done:at]
                chances += scores[done:at]
                tokens += change.new
                chances += [scores[at] * change.share, *[scores[at]] * (len(change.new) - 1)]
                done = at + len(change.old)
        if not done:
            return source, scores
        tokens += source[done:]
        chances += scores[done:]
        return tokens[:max_tokens], chances[:max_tokens]

    def _next_place(self) -> Place | None:
        """Where the text may resume after a change: after the next token equal to its last one."""
        index, first, last = self.index, self.position + 1, self._written[-1]
        if index is None:
            return None
        source = index.tokens[first : min(self._limit, first + LONGEST_OLD + 1)].tolist()
        if last not in source[:-1]:
            return None
        at = source.index(last) + 1
        is_end = source[at] == SEPARATOR or (
            index.tokens[self.position] in self._changes and self._under_way(index) is not None
        )
        return None if is_end else (ANCHOR, first + at)

    def _known(self, source: list[int], at: int) -> Change | None:
        """The longest change whose old tokens are at this position; among equals the most
        frequent.
        """
        best, longest = None, 0
        second = source[at + 1 : at + 2]
        for change in self._changes.get(source[at], ()):
            old, size = change.old, len(change.old)
            if size < longest or (size > 1 and (not second or old[1] != second[0])):
                continue  # most differ there
            if size > 2 and source[at : at + size] != old:
                continue
            if best is None or size > longest or change.made > best.made:
                best, longest = change, size
        return best

    def _under_way(self, index: SuffixIndex) -> Change | None:
        """The known change that is partly written, if any."""
        source = index.tokens[self.position : self.position + LONGEST_OLD + 1].tolist()
        written, size = self._written, len(self._written)
        for change in self._changes.get(source[0], ()):
            if change.new[:size] == written and source[: len(change.old)] == change.old:
                return change
        return None

    def _note_kept(self, change: Change) -> None:
        """Count that a change was not made; forget it if it is rarely made."""
        change.kept += 1
        if change.kept > change.made:
            token, self._num_changes = change.old[0], self._num_changes - 1
            self._changes[token] = [other for other in self._changes[token] if other is not change]
            if not self._changes[token]:
                del self._changes[token]

    def _rejoin(self, index: SuffixIndex) -> None:
        """Check whether the text is back in the source after a departure."""
        is_known = index.tokens[self.position] in self._changes
        change = self._under_way(index) if is_known else None
        if change is not None:
            if len(change.new) == len(self._written):
                change.made += 1
                self.position += len(change.old)
                self.run += 1
                self._written.clear()
            return
        written, size = self._written, len(self._written) - ANCHOR
        if size < 0:
            return
        source = index.tokens[
            self.position : min(self._limit, self.position + LONGEST_OLD + ANCHOR)
        ].tolist()
        anchor = written[size:]
        for skipped in range(len(source) - ANCHOR + 1) if anchor[0] in source else ():
            if source[skipped : skipped + ANCHOR] == anchor:
                self._learn(source[:skipped], written[:size], anchor[:1])
                self.position += skipped + ANCHOR
                # Of the tokens before the change, four still count for the copy after it
                self.run = ANCHOR + min(4, self.run)
                written.clear()
                return
        if size >= LONGEST_NEW:
            self.stop()

    def _learn(self, old: list[int], new: list[int], following: list[int]) -> None:
        """Learn a change. Deletions include the token that follows; insertions are not learned, nor
        changes across the end of a text.
        """
        if not old or SEPARATOR in old:
            return
        if not new:
            old, new = old + following, following
        if self._add(old, new) and self._variants is not None:
            self._further.append(iter(self._variants(old, new)))

    def _learn_further(self) -> None:
        """Add some derived changes of the newest change that has any left."""
        changes = list(islice(self._further[-1], MAX_FURTHER))
        for change in changes:
            self._add(*change)
        if len(changes) < MAX_FURTHER:
            self._further.pop()

    def _add(self, old: list[int], new: list[int]) -> bool:
        """Add a change; returns False if it is known or there are too many."""
        known = self._changes.get(old[0], [])
        if self._num_changes == 64 or any(c.old == old and c.new == new for c in known):
            return False
        self._changes[old[0]] = [*known, Change(old, new)]
        self._num_changes += 1
        return True
