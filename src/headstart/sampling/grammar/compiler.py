"""Constraints become matchers: in one thread of low priority, within limits, once per constraint.

llguidance lets go of the interpreter while it compiles, so the engine's step goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait

from llguidance import LLMatcher, LLParserLimits

from headstart.sampling.grammar.source import grammar_text
from headstart.sampling.grammar.state import GrammarState, explain
from headstart.sampling.grammar.tokens import GrammarTokens
from headstart.types import Vocab
from headstart.types.constraint import Constraint
from headstart.types.errors import InvalidParameterError

MAX_CACHED = 64  # compiled constraints
LOW_PRIORITY = 10  # added to the thread's niceness
# What one constraint may cost. Compiling within them takes up to a second (2 cores, 2026), a token
# of the answer some tens of milliseconds at worst.
LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,  # building the regexes
    step_lexer_fuel=100_000,  # of them, for one token
    step_max_items=20_000,  # parser items for one token
    max_items_in_row=1_000,  # ways to read the text at one place
    max_lexer_states=50_000,  # 1 to 2 kB each
    max_grammar_size=30_000,  # symbols
    verbose_errors=False,
)


class Compiled:
    """A constraint ready for use; `begin` makes the state of one answer."""

    def __init__(self, constraint: Constraint, tokens: GrammarTokens) -> None:
        """Compile it.

        Raises:
            InvalidParameterError: it is not well-formed, too complex, or no text satisfies it.
        """
        self.constraint = constraint
        self.tokens = tokens
        self._matcher = LLMatcher(
            tokens.native, grammar_text(constraint), log_level=0, limits=LIMITS
        )
        self._check(self._matcher)
        # the first mask builds what later ones use
        forced = self._matcher.compute_ff_tokens()
        self._matcher.compute_bitmask()
        self._check(self._matcher)
        if forced:  # what is too complex shows where there is a choice
            ahead = self._matcher.deep_copy()
            ahead.consume_tokens(forced)
            ahead.compute_bitmask()
            self._check(ahead)
        for trigger in constraint.triggers if constraint.includes_trigger else ():
            pieces = tokens.encode(trigger)
            if self._matcher.validate_tokens(pieces) < len(pieces):
                raise InvalidParameterError(
                    f"the trigger {trigger.decode('utf-8', 'replace')!r} cannot be the beginning "
                    f"of a text that the {constraint.kind.title} allows"
                )

    def begin(self) -> GrammarState:
        return GrammarState(self.constraint, self.tokens, self._matcher.deep_copy)

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise InvalidParameterError(
                f"the {self.constraint.kind.title} cannot be used: {explain(matcher)}"
            )


class GrammarCompiler:
    """All constraints of one vocabulary. For one thread, its own worker apart."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._executor = ThreadPoolExecutor(1, "headstart-grammar", _lower_priority)
        self._tokens: Future[GrammarTokens] | None = None
        self._compiled: OrderedDict[Constraint, Future[Compiled]] = OrderedDict()

    def prepare(self) -> None:
        """Begin to read the vocabulary; done anyway before the first constraint."""
        if self._tokens is None:
            self._tokens = self._executor.submit(GrammarTokens, self._vocab)

    def compile(self, constraint: Constraint) -> Future[Compiled]:
        """The constraint ready for use, soon; its exception is an InvalidParameterError."""
        self.prepare()
        known = self._compiled.get(constraint)
        if known is None:
            known = self._executor.submit(self._compile, constraint)
            self._compiled[constraint] = known
            while len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(constraint)
        return known

    def abandon(self, constraint: Constraint, compiling: Future[Compiled]) -> None:
        """Nobody waits for this one any more; if it was not begun, it does not hold up others."""
        if compiling.cancel() and self._compiled.get(constraint) is compiling:
            del self._compiled[constraint]

    def wait(self, compiling: list[Future[Compiled]], seconds: float) -> None:
        """Wait until one of them is done."""
        wait(compiling, seconds, return_when="FIRST_COMPLETED")

    def close(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _compile(self, constraint: Constraint) -> Compiled:
        assert self._tokens is not None
        return Compiled(constraint, self._tokens.result())


def _lower_priority() -> None:
    """The model's threads come first. Only on Linux, where one thread has a niceness of its own."""
    if sys.platform == "linux":
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + LOW_PRIORITY)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
