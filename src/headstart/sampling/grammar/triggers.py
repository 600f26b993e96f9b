"""Where a constraint begins inside a text: behind, or at, the first of some byte strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from headstart.sampling.grammar.tokens import GrammarTokens
from headstart.types.constraint import ThoughtMarks


class FreeText(NamedTuple):
    """What has to be known of a text that is not constrained yet."""

    tail: bytes = b""  # its end, as far as it may begin a trigger or a mark of thoughts
    is_thinking: bool = False  # it ends inside thoughts, where triggers do not count


class Triggers:
    """What a free text is searched for."""

    def __init__(
        self,
        triggers: tuple[bytes, ...],
        thoughts: ThoughtMarks | None,
        tokens: GrammarTokens,
        *,
        includes_trigger: bool = False,
    ) -> None:
        self._triggers = triggers
        self._thoughts = thoughts
        self._includes_trigger = includes_trigger
        self._tokens = tokens
        self._outside = (*triggers, *([thoughts.start] if thoughts and thoughts.start else ()))
        self._illegal: dict[FreeText, NDArray[np.int32]] = {}

    def begin(self) -> FreeText:
        """The beginning of an answer."""
        return FreeText(is_thinking=self._thoughts is not None and self._thoughts.is_open)

    def follow(self, text: FreeText, token: int) -> tuple[bytes | None, FreeText]:
        """The bytes with which the constrained text begins if this token completes a trigger, else
        None; and the text behind the token.

        The trigger that is complete first counts; of two that end together, the longer one. The
        mark that ends thoughts may be a trigger, or begin one.
        """
        left, is_thinking = text.tail + self._tokens.spelling(token), text.is_thinking
        while True:
            if is_thinking:
                assert self._thoughts is not None
                at = left.find(self._thoughts.end)
                if at < 0:
                    return None, FreeText(_beginning(left, (self._thoughts.end,)), True)
                left = left[at:]
            found = min(self._ends(left), default=None)
            thoughts_at = self._begin_of_thoughts(left)
            if thoughts_at is not None and (found is None or thoughts_at < found[0]):
                left, is_thinking = left[thoughts_at:], True
                continue
            if found is None:
                return None, FreeText(_beginning(left, self._outside))
            end, length = found
            return left[end + length if self._includes_trigger else end :], FreeText()

    def is_legal(self, found: bytes, make: Callable[[], LLMatcher]) -> bool:
        """Whether a constrained text may begin like this."""
        pieces = self._tokens.encode(found)
        return not pieces or make().validate_tokens(pieces) == len(pieces)

    def illegal_ids(self, text: FreeText, make: Callable[[], LLMatcher]) -> NDArray[np.int32]:
        """Tokens that complete a trigger and go on in a way that is not legal.

        Reads a part of the vocabulary at the first call for each text; there are few.
        """
        known = self._illegal.get(text)
        if known is None:
            lasts = {trigger[-1] for trigger in self._triggers}
            known = np.array(
                [
                    token
                    for token in self._tokens.with_bytes(lasts)
                    if (found := self.follow(text, token)[0]) and not self.is_legal(found, make)
                ],
                np.int32,
            )
            self._illegal[text] = known
        return known

    def _ends(self, text: bytes) -> list[tuple[int, int]]:
        """Where triggers end, with the length of each taken off zero: the least one counts."""
        return [
            (at + len(trigger), -len(trigger))
            for trigger in self._triggers
            if (at := text.find(trigger)) >= 0
        ]

    def _begin_of_thoughts(self, text: bytes) -> int | None:
        """Where the text goes on behind the first mark that begins thoughts."""
        if self._thoughts is None or not self._thoughts.start:
            return None
        at = text.find(self._thoughts.start)
        return None if at < 0 else at + len(self._thoughts.start)


def _beginning(text: bytes, marks: Sequence[bytes]) -> bytes:
    """The longest end of the text that may begin one of the marks."""
    for start in range(max(0, len(text) + 1 - max(map(len, marks))), len(text)):
        if any(mark.startswith(text[start:]) for mark in marks):
            return text[start:]
    return b""
