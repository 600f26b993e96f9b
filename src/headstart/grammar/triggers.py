"""Where a constraint begins inside a text: behind, or at, the first of some byte strings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from headstart.grammar.constraint import Constraint
from headstart.grammar.tokens import GrammarTokens


class Triggers:
    """The triggers of one constraint. `tail` is the end of a text that may begin one of them."""

    def __init__(self, constraint: Constraint, tokens: GrammarTokens) -> None:
        self._triggers = constraint.triggers
        self._includes_trigger = constraint.includes_trigger
        self._tokens = tokens
        self._longest = max(map(len, constraint.triggers))
        self._illegal: dict[bytes, NDArray[np.int32]] = {}

    def find(self, tail: bytes, token: int) -> bytes | None:
        """The bytes with which the constrained text begins if this token completes a trigger.

        The trigger that is complete first counts; of two that end together, the longer one.
        """
        text = tail + self._tokens.spelling(token)
        ends = [
            (at + len(trigger), -len(trigger))
            for trigger in self._triggers
            if (at := text.find(trigger)) >= 0
        ]
        if not ends:
            return None
        end, length = min(ends)
        return text[end + length :] if self._includes_trigger else text[end:]

    def tail(self, tail: bytes, token: int) -> bytes:
        """The longest end of the text that may begin a trigger."""
        text = (
            (tail + self._tokens.spelling(token))[1 - self._longest :] if self._longest > 1 else b""
        )
        for start in range(len(text)):
            if any(trigger.startswith(text[start:]) for trigger in self._triggers):
                return text[start:]
        return b""

    def is_legal(self, found: bytes, make: Callable[[], LLMatcher]) -> bool:
        """Whether a constrained text may begin like this."""
        pieces = self._tokens.encode(found)
        return not pieces or make().validate_tokens(pieces) == len(pieces)

    def illegal_ids(self, tail: bytes, make: Callable[[], LLMatcher]) -> NDArray[np.int32]:
        """Tokens that complete a trigger and go on in a way that is not legal.

        Reads the whole vocabulary at the first call for each tail; there are few.
        """
        known = self._illegal.get(tail)
        if known is None:
            known = np.array(
                [
                    token
                    for token in range(self._tokens.size)
                    if (found := self.find(tail, token)) and not self.is_legal(found, make)
                ],
                np.int32,
            )
            self._illegal[tail] = known
        return known
