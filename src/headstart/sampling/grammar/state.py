"""The state of one answer in its constraint: which tokens are legal, which are forced.

Only emitted tokens are read, so only a lookahead is ever rolled back. Which tokens are legal
depends on the constraint and the emitted tokens alone, not on drafts or earlier queries.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from headstart.sampling.grammar.source import one_line
from headstart.sampling.grammar.triggers import FreeText, GrammarTokens
from headstart.sampling.sampler import only
from headstart.types.constraint import Constraint
from headstart.types.errors import LexerLimitError, RequestError

R = TypeVar("R")

# tokens between two recompilations for an answer, each of which reads all its tokens again
MIN_RENEWED = 100


class GrammarState:
    """The legal tokens at the current position of an answer.

    opening    the answer may be constrained text or start with the reasoning marker; `_opening`
               holds the rest of the marker, `_matcher` is None once only the marker is possible
    free       before a trigger, or inside reasoning; `_matcher` is None
    matching   `_matcher` has read `_read`, the tokens of the constrained text so far
    over       the text is complete and nothing can follow

    Answers of one constraint share a lexer, whose limits count everything read by any of them,
    including drafts. If the shared lexer hits its limits, the answer gets a private one, and drafts
    do not use it until it may be renewed.
    """

    def __init__(
        self, constraint: Constraint, tokens: GrammarTokens, make: Callable[[], LLMatcher]
    ) -> None:
        self.vocab_size = tokens.size
        self._constraint = constraint
        self._tokens = tokens
        self._make = make
        self._opening: tuple[int, ...] = ()
        self._free: FreeText | None = None
        marks = constraint.thoughts
        if triggers := constraint.triggers:
            is_thinking = marks is not None and marks.is_open
            self._free = FreeText(triggers, constraint.includes_trigger, marks, is_thinking)
        elif marks is not None and constraint.is_behind_thoughts:  # which must end first
            self._opening, self._free = marks.opening, FreeText((marks.end,))
        self._matcher = make() if self._opening or not self._free else None
        self._read: list[int] = []
        self._forced: list[int] | None = None
        self._num_unread = 0  # tokens to read until it may be renewed
        self.is_over = False

    @property
    def can_renew(self) -> bool:
        """Whether the answer may get a private lexer after llguidance gave up; not inside a marker,
        which is not part of the text after it.
        """
        return not self._num_unread and not (self._opening and self._read)

    def interrupt(self) -> Constraint:
        """Release the lexer until `renew`; returns the constraint to compile for that."""
        constraint = self._constraint
        constraint = replace(constraint, read=(*constraint.read, *self._read))
        self._constraint, self._read, self._forced = constraint, [], None
        self._is_matching, self._matcher = self._matcher is not None, None
        del self._make
        return constraint

    def renew(self, make: Callable[[], LLMatcher]) -> None:
        """Continue with matchers of the constraint that `interrupt` returned."""
        # without tokens read, others share the new lexer and may exhaust it at any time
        self._make, self._num_unread = make, MIN_RENEWED if self._constraint.read else 1
        if self._is_matching:
            self._matcher = make()

    @property
    def is_active(self) -> bool:
        """Whether the text is constrained at this point."""
        return self._matcher is not None and not self._opening

    def allows(self, token: int) -> bool:
        """Whether this token is legal next."""
        if self._opening and token == self._opening[0]:
            return True
        if self._matcher is None:
            return not self._opening and self._allows_free(token)
        if forced := self._matcher_forced():
            return token == forced[0]
        return self._ask(lambda matcher: matcher.validate_tokens([token])) == 1

    def legal_mask(self) -> NDArray[np.bool_]:
        """Mask of the tokens to choose from if the model's own choice is illegal.

        Reasoning begins only by the model's own choice, so its marker is not among them. Before a
        trigger, tokens that complete it and continue illegally are, which `allows` finds.

        Raises:
            RequestError: the mask is empty, or the grammar is too complex here.
        """
        if self._matcher is not None:
            return self._legal_matching()
        return only(self._opening[0], self.vocab_size) if self._opening else self._legal_free()

    def _legal_matching(self) -> NDArray[np.bool_]:
        if forced := self._matcher_forced():
            return only(forced[0], self.vocab_size)
        bits = np.frombuffer(self._ask(LLMatcher.compute_bitmask), np.uint8)
        return np.unpackbits(bits, count=self.vocab_size, bitorder="little").view(np.bool_)

    def forced(self) -> list[int]:
        """The canonical tokens of the text that must follow; empty if there is a choice.

        Its last bytes are omitted if they may share a token with the text after them.
        """
        if self._opening and not self.is_over:
            return list(self._opening) if self._matcher is None else []
        with suppress(RequestError):  # raised again when the next token is chosen
            return self._matcher_forced()
        return []

    def _matcher_forced(self) -> list[int]:
        if self._matcher is None or self.is_over:
            return []
        if self._forced is None:
            self._forced = self._ask(LLMatcher.compute_ff_tokens)
            if self.vocab_size in self._forced:  # named by a client's grammar, and no token
                del self._forced[self._forced.index(self.vocab_size) :]
        return self._forced

    def read(self, token: int) -> None:
        """Append a legal token to the text.

        Raises:
            RequestError: the grammar is too complex for this text, which is unchanged.
        """
        if self._opening:
            self._read_opening(token)
        elif self._matcher is None:
            self._read_free(token)
        else:
            self._consume(token)
        self._num_unread = max(0, self._num_unread - 1)

    @contextmanager
    def lookahead(self) -> Iterator[GrammarState]:
        """A copy that reads tokens which were not emitted; nothing is legal in it afterwards.

        It shares the matcher, which is then rolled back: a copy takes O(answer), 0.1 ms for 10 kB.
        """
        ahead, matcher = copy.copy(self), self._matcher
        ahead._read = consumed = list[int]()
        ahead.is_over = self.is_over or self._num_unread > 0
        try:
            yield ahead
        finally:
            ahead.is_over = True
            if matcher is not None and (
                matcher.is_error() or (consumed and not matcher.rollback(len(consumed)))
            ):
                self._rebuild()

    def read_legal(self, tokens: Sequence[int]) -> int:
        """In a look ahead: read tokens up to the first illegal one; returns how many are legal.

        If the grammar is too complex for them, nothing further is legal.
        """
        for index, token in enumerate(tokens):
            try:
                if self.is_over or not self.allows(token):
                    return index
                if token in self._tokens.eog_ids:  # nothing follows it
                    self.is_over = True
                else:
                    self.read(token)
            except RequestError:  # raised again when the token is chosen
                self.is_over = True
                return index
        return len(tokens)

    def legal_instead(self, token: int) -> NDArray[np.bool_] | None:
        """In a look ahead: None if `token` may come next, else a mask of legal tokens."""
        try:
            if not self.is_over:
                return None if self.allows(token) else self.legal_mask()
        except RequestError:  # as in `read_legal`
            self.is_over = True
        return np.zeros(self.vocab_size, np.bool_)

    def _consume(self, token: int) -> None:
        self._ask(lambda matcher: matcher.consume_tokens([token]))
        # the remaining forced text keeps its tokens: tokenizing it again would give the same
        known = self._forced
        self._forced = known[1:] or None if known and known[0] == token else None
        self._read.append(token)
        self.is_over = self._ask(LLMatcher.is_stopped)

    def _ask(self, question: Callable[[LLMatcher], R]) -> R:
        """Query the matcher.

        Raises:
            RequestError: the grammar is too complex for this text.
        """
        assert self._matcher is not None
        answer = question(self._matcher)
        self._check(self._matcher)
        return answer

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise (LexerLimitError if _is_used_up(matcher) else RequestError)(
                f"the {self._constraint.kind.title} cannot be followed further: {explain(matcher)}"
            )

    def _rebuild(self) -> None:
        """Create a new matcher: llguidance's errors persist even after a rollback."""
        self._matcher = self._make()
        self._matcher.consume_tokens(self._read)

    def _begun(self, found: bytes) -> tuple[LLMatcher, list[int]]:
        """A matcher that has read the first bytes of the constrained text, and their tokens."""
        tokens = self._tokens
        pieces = [tokens.thoughts_id] * self._constraint.is_behind_thoughts + tokens(found)
        matcher = self._make()
        matcher.consume_tokens(pieces)
        return matcher, pieces

    def _allows_free(self, token: int) -> bool:
        if token in self._tokens.eog_ids:
            return not self._constraint.is_behind_thoughts
        found, _ = self._follow(token)
        if found is None:
            return True
        # `validate_tokens` would call them illegal where the lexer is used up
        matcher, _ = self._begun(found)
        if _is_used_up(matcher):
            self._check(matcher)
        return not matcher.is_error()

    def _follow(self, token: int) -> tuple[bytes | None, FreeText]:
        assert self._free is not None
        return self._free.follow(self._tokens.table.spelling(token))

    def _legal_free(self) -> NDArray[np.bool_]:
        mask = np.ones(self.vocab_size, np.bool_)
        if self._constraint.is_behind_thoughts:
            mask[list(self._tokens.eog_ids)] = False
        return mask

    def _read_opening(self, token: int) -> None:
        """Read the next token of the reasoning marker, or the first one of text without it."""
        if token != self._opening[0]:
            self._consume(token)
            self._opening = ()
            return
        is_thinking = len(self._opening) == 1 or self._matcher is None
        # a mask shows whether the matcher gave up; `validate_tokens` would call the token illegal
        if is_thinking or not self._legal_matching()[token]:
            self._matcher, self._read, self._forced = None, [], None
        else:
            self._consume(token)
        self._opening = self._opening[1:]

    def _read_free(self, token: int) -> None:
        found, free = self._follow(token)
        if found is not None:
            matcher, pieces = self._begun(found)
            self._check(matcher)
            self._matcher, self._read, self._forced = matcher, pieces, None
            self.is_over = matcher.is_stopped()
        self._free = free


def _is_used_up(matcher: LLMatcher) -> bool:
    """Whether its lexer has as many states as it may; all other limits are of one token alone."""
    return "too many states" in matcher.get_error()


def explain(matcher: LLMatcher) -> str:
    """The matcher's error on one line."""
    text = matcher.get_error().partition("<non-verbose/>")[0].partition("<state>")[0]
    if "NoExtension" in text:
        return "no text can satisfy it"
    return one_line(text)
