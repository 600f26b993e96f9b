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
from headstart.sampling.grammar.triggers import FreeText, GrammarTokens, Triggers
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
        marks = constraint.thoughts
        # the constrained text follows the reasoning, which must end first
        self._awaits_end = False
        self._triggers: Triggers | None = None
        if constraint.triggers:
            self._triggers = Triggers(
                constraint.triggers, marks, tokens, includes_trigger=constraint.includes_trigger
            )
        elif marks is not None and (marks.is_open or marks.opening):
            self._awaits_end = True
            self._triggers = Triggers((marks.end,), None, tokens)
        self._opening = () if constraint.triggers or not marks or marks.is_open else marks.opening
        self._matcher = make() if self._opening or not self._triggers else None
        self._read: list[int] = []
        self._free = self._triggers.begin() if self._triggers else FreeText()
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
        """Mask of the legal next tokens; before a trigger it includes tokens that complete it and
        continue illegally, which `allows` finds.

        Raises:
            RequestError: the mask is empty, or the grammar is too complex here.
        """
        if not self._opening:
            return self._legal_free() if self._matcher is None else self._legal_matching()
        mask = (
            np.zeros(self.vocab_size, np.bool_)
            if self._matcher is None
            else (self._legal_matching())
        )
        mask[self._opening[0]] = True
        return mask

    def _legal_matching(self) -> NDArray[np.bool_]:
        if forced := self._matcher_forced():
            return only(forced[0], self.vocab_size)
        return _mask(self._ask(LLMatcher.compute_bitmask), self.vocab_size)

    def forced(self) -> list[int]:
        """The canonical tokens of the text that must follow; empty if there is a choice.

        Its last bytes are omitted if they may share a token with the text after them.
        """
        if self._opening:
            return list(self._opening) if self._matcher is None else []
        return self._matcher_forced()

    def _matcher_forced(self) -> list[int]:
        if self._matcher is None or self.is_over:
            return []
        if self._forced is None:
            self._forced = self._ask(LLMatcher.compute_ff_tokens)
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
            self._consume([token])
        self._num_unread = max(0, self._num_unread - 1)

    @contextmanager
    def lookahead(self) -> Iterator[Lookahead]:
        """Read ahead tokens that were not emitted; the state is restored afterwards.

        A copy would take O(answer): 0.1 ms for 10 kB.
        """
        matcher, forced = None, list[int]()
        if not self._opening and not self.is_over and not self._num_unread:
            with suppress(RequestError):  # the error is raised again when the next token is chosen
                matcher, forced = self._matcher, self._matcher_forced()
        ahead = Lookahead(self, matcher, forced)
        try:
            yield ahead
        finally:
            if matcher is not None and (not ahead.end() or matcher.is_error()):
                self._rebuild()

    def copied(self) -> GrammarState:
        """An independent copy of the state."""
        other = copy.copy(self)
        other._read = list(self._read)
        other._matcher = self._matcher and self._matcher.deep_copy()
        return other

    def _consume(self, tokens: Sequence[int]) -> None:
        assert self._matcher is not None
        # the remaining forced text keeps its tokens: tokenizing it again would give the same
        known = self._forced if len(tokens) == 1 else None
        self._ask(lambda matcher: matcher.consume_tokens(list(tokens)))
        self._forced = known[1:] if known and known[1:] and known[0] == tokens[0] else None
        self._read += tokens
        if self._matcher.is_stopped():
            self.is_over = True

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

    def _may_begin(self, found: bytes) -> bool:
        """Whether the constrained text may begin with these bytes."""
        matcher = self._make()
        # `validate_tokens` would call them illegal where the lexer is used up
        is_legal = matcher.consume_tokens(self._tokens.encode(found))
        if _is_used_up(matcher):
            self._check(matcher)
        return is_legal

    def _allows_free(self, token: int) -> bool:
        assert self._triggers is not None
        if token in self._tokens.eog_ids:
            return not self._awaits_end
        found, _ = self._triggers.follow(self._free, token)
        return found is None or self._may_begin(found)

    def _legal_free(self) -> NDArray[np.bool_]:
        mask = np.ones(self.vocab_size, np.bool_)
        if self._awaits_end:
            mask[list(self._tokens.eog_ids)] = False
        return mask

    def _read_opening(self, token: int) -> None:
        """Read the next token of the reasoning marker, or the first one of text without it."""
        if token != self._opening[0]:
            self._consume([token])
            self._opening = ()
            return
        is_thinking = len(self._opening) == 1 or self._matcher is None
        # a mask shows whether the matcher gave up; `validate_tokens` would call the token illegal
        if is_thinking or not self._legal_matching()[token]:
            self._matcher, self._read, self._forced = None, [], None
        else:
            self._consume([token])
        self._opening = self._opening[1:]

    def _read_free(self, token: int) -> None:
        assert self._triggers is not None
        found, free = self._triggers.follow(self._free, token)
        if found is not None:
            matcher, pieces = self._make(), self._tokens.encode(found)
            matcher.consume_tokens(pieces)
            self._check(matcher)
            self._matcher, self._read, self._forced = matcher, pieces, None
            self.is_over = matcher.is_stopped()
        self._free = free


class Lookahead:
    """Reads tokens of a draft; see `GrammarState.lookahead`. In constrained text it is also the
    `DraftLegality` of a draft model.

    If the matcher fails, all further tokens are illegal.
    """

    def __init__(self, state: GrammarState, matcher: LLMatcher | None, forced: list[int]) -> None:
        self.is_over = False  # the end of the turn was read
        self._num_read = 0
        self._state = state
        self._matcher = matcher
        self._forced = forced

    def read_legal(self, tokens: Sequence[int]) -> int:
        """Read tokens up to the first illegal one; returns how many are legal."""
        if self._matcher is None:
            return self._count_free(tokens)
        for index, token in enumerate(tokens):
            forced = self.forced()
            is_over = self.is_over or self._matcher.is_stopped()
            if is_over or (forced and token != forced[0]):
                return index
            if token in self._state._tokens.eog_ids:  # nothing follows it
                self.is_over = self._matcher.is_accepting()
                return index + self.is_over
            if self._matcher.try_consume_tokens([token]) != 1:
                return index
            self._num_read += 1
            self._forced = forced[1:]
        return len(tokens)

    def forced(self) -> list[int]:
        """Tokens that must follow those read."""
        if self._matcher is None or self.is_over or self._matcher.is_stopped():
            return []
        if not self._forced:
            self._forced = self._matcher.compute_ff_tokens()
        return self._forced

    def legal_mask(self, token: int) -> NDArray[np.bool_] | None:
        """None if `token` may come next, else a mask of legal tokens."""
        matcher, size = self._matcher, self._state.vocab_size
        if matcher is None or self.is_over or matcher.is_stopped():
            return np.zeros(size, np.bool_)
        if forced := self.forced():
            return None if token == forced[0] else only(forced[0], size)
        if matcher.validate_tokens([token]) == 1:
            return None
        bits = matcher.compute_bitmask()
        return np.zeros(size, np.bool_) if matcher.is_error() else _mask(bits, size)

    def read(self, token: int) -> None:
        """Append a token to the draft."""
        self.read_legal((token,))

    def end(self) -> bool:
        """Roll back everything read. Returns False on failure; then no token is legal."""
        matcher, self._matcher = self._matcher, None
        return matcher is None or not self._num_read or matcher.rollback(self._num_read)

    def _count_free(self, tokens: Sequence[int]) -> int:
        """Count legal tokens in free text, by a copy of the state."""
        if self._state._num_unread:
            return 0
        state = self._state.copied()
        for index, token in enumerate(tokens):
            try:
                if state.is_over or not state.allows(token):
                    return index
                if token in state._tokens.eog_ids:
                    return index + 1
                state.read(token)
            except RequestError:  # too complex
                return index
        return len(tokens)


def _mask(bits: bytes, size: int) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=size, bitorder="little").view(
        np.bool_
    )


def _is_used_up(matcher: LLMatcher) -> bool:
    """Whether its lexer has as many states as it may; all other limits are of one token alone."""
    return "too many states" in matcher.get_error()


def explain(matcher: LLMatcher) -> str:
    """The matcher's error on one line."""
    text = matcher.get_error().partition("<non-verbose/>")[0].partition("<state>")[0]
    if "NoExtension" in text:
        return "no text can satisfy it"
    return one_line(text)
