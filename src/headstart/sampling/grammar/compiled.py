"""A compiled constraint."""

from __future__ import annotations

from llguidance import LLMatcher, LLParserLimits

from headstart.sampling.grammar.source import grammar_text
from headstart.sampling.grammar.state import GrammarState, explain
from headstart.sampling.grammar.triggers import GrammarTokens
from headstart.types.constraint import Constraint
from headstart.types.errors import RequestError

# Limits per constraint. Within them, compiling takes up to a second (2 cores, 2026), a token of the
# answer some tens of milliseconds at worst.
LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,  # building the regexes
    step_lexer_fuel=100_000,  # for one token
    step_max_items=20_000,  # parser items for one token
    max_items_in_row=1_000,  # parses of the text at one position
    max_lexer_states=50_000,  # 1 to 2 kB each
    max_grammar_size=30_000,  # symbols
    verbose_errors=False,
)


class Compiled:
    """A compiled constraint; `begin` makes the state of one answer."""

    def __init__(
        self, constraint: Constraint, tokens: GrammarTokens, text: str = "", num_bytes: int = 0
    ) -> None:
        """Compile the constraint.

        Args:
            text, num_bytes: llguidance's form, which takes seconds of the interpreter to find, and
                its memory, both as found by a `Sandbox`; without them, `text` is found here.

        Raises:
            RequestError: it is malformed, too complex, or no text satisfies it.
        """
        self.constraint = constraint
        self.tokens = tokens
        self.num_bytes = num_bytes
        self.text = "" if text else grammar_text(constraint)
        self._matcher = self._compile(text or self.text)
        # of forced text, which takes 3 microseconds per byte
        if not text and len(self._matcher.compute_ff_bytes()) > 4096:
            self.text = grammar_text(constraint, forces=False)
            self._matcher = self._compile(self.text)
        for token in constraint.read:
            self._matcher.consume_tokens([token])  # one at a time, because it holds the interpreter
        # warm up: later masks reuse the first one
        forced = self._matcher.compute_ff_tokens()
        self._matcher.compute_bitmask()
        self._check(self._matcher)
        if forced:  # limits are only reached if there is a choice
            ahead = self._matcher.deep_copy()
            ahead.consume_tokens(forced)
            ahead.compute_bitmask()
            self._check(ahead)
        begins = constraint.includes_trigger and not constraint.read
        for trigger in constraint.triggers if begins else ():
            pieces = tokens(trigger)
            if self._matcher.validate_tokens(pieces) < len(pieces):
                raise RequestError(
                    f"the trigger {trigger.decode('utf-8', 'replace')!r} cannot be the beginning "
                    f"of a text that the {constraint.kind.title} allows"
                )

    def begin(self) -> GrammarState:
        return GrammarState(self.constraint, self.tokens, self.make)

    def make(self) -> LLMatcher:
        """A matcher that has consumed `constraint.read`."""
        return self._matcher.deep_copy()

    def _compile(self, text: str) -> LLMatcher:
        matcher = LLMatcher(self.tokens.native, text, log_level=0, limits=LIMITS)
        self._check(matcher)
        return matcher

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise RequestError(
                f"the {self.constraint.kind.title} cannot be used: {explain(matcher)}"
            )
