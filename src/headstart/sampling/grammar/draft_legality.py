"""Which tokens may extend a draft, for models that draft token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # llguidance is imported where a constraint is compiled, and only then
    from collections.abc import Sequence

    from llguidance import LLMatcher

    from headstart.sampling.grammar.state import GrammarState


class MatcherLegality:
    """`DraftLegality` of one draft: a copy of the answer's matcher that follows the draft.

    Copying takes microseconds, and an error in the copy does not affect the answer.
    """

    def __init__(self, matcher: LLMatcher, num_tokens: int) -> None:
        self._matcher = matcher
        self._num_tokens = num_tokens  # of the vocabulary

    @classmethod
    def behind(
        cls, state: GrammarState, tokens: Sequence[int], num_tokens: int
    ) -> MatcherLegality | None:
        """The state after these legal tokens; None where the text is unconstrained."""
        matcher = state.fork()
        if matcher is None:
            return None
        matcher.consume_tokens(list(tokens))
        return cls(matcher, num_tokens)

    def legal_mask(self, token: int) -> NDArray[np.bool_] | None:
        if self._is_at_end:
            return np.zeros(self._num_tokens, np.bool_)
        forced = self._matcher.compute_ff_tokens()
        if forced:
            mask = np.zeros(self._num_tokens, np.bool_)
            mask[forced[0]] = True
            return None if token == forced[0] else mask
        if self._matcher.validate_tokens([token]) == 1:
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            return np.zeros(self._num_tokens, np.bool_)
        return np.unpackbits(bits, count=self._num_tokens, bitorder="little").view(np.bool_)

    def read(self, token: int) -> None:
        if not self._is_at_end:
            self._matcher.try_consume_tokens([token])

    @property
    def _is_at_end(self) -> bool:
        return self._matcher.is_error() or self._matcher.is_stopped()
