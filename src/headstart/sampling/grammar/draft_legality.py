"""Which tokens may extend a draft, for models that draft token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headstart.types.errors import InvalidParameterError

if TYPE_CHECKING:  # llguidance is imported where a constraint is compiled, and only then
    from collections.abc import Sequence

    from headstart.sampling.grammar.state import GrammarState


class StateLegality:
    """`DraftLegality` of one draft: a copy of the answer's state that follows the draft.

    Copying takes microseconds, and an error in the copy does not affect the answer.
    """

    def __init__(self, state: GrammarState) -> None:
        self._state = state
        self._has_failed = False

    @classmethod
    def behind(cls, state: GrammarState, tokens: Sequence[int]) -> StateLegality | None:
        """The state after these legal tokens; None where the text is unconstrained."""
        if not state.is_active or state.is_over:
            return None
        legality = cls(state.copied())
        for token in tokens:
            legality.read(token)
        return legality

    def legal_mask(self, token: int) -> NDArray[np.bool_] | None:
        try:
            if not (self._has_failed or self._state.is_over):
                return None if self._state.allows(token) else self._state.legal_mask()
        except InvalidParameterError:  # too complex
            self._has_failed = True
        return np.zeros(self._state.vocab_size, np.bool_)

    def read(self, token: int) -> None:
        try:
            if not (self._has_failed or self._state.is_over):
                self._state.read(token)
        except InvalidParameterError:
            self._has_failed = True
