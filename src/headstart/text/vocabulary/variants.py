"""A replaced word in its other spellings.

A vocabulary spells a word differently after a space, a bracket or a dot: ` count`, `(count` and
`count` may be three tokens or parts of them. Who has seen one of them replaced knows what becomes
of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from headstart.structures.prefix import common_prefix_length
from headstart.types import Vocab

# what vocabularies join to a word
_BEFORE = (b"", b" ", b"(", b".", b"_", b'"', b"'", b"[", b"\n", b"\t")
_WORD = re.compile(rb" ?(\w+)")

Replacement = tuple[list[int], list[int]]
"""Tokens that were replaced, and by what."""


class Variants:
    """Other spellings of a replaced word in one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    def __call__(self, old: Sequence[int], new: Sequence[int]) -> Iterator[Replacement]:
        """Replacements that follow from this one; none if it is not of a word by a word.

        Each takes some ten microseconds when it is asked for, and several may be the same.
        """
        before, after = (
            _WORD.fullmatch(b"".join(map(self._vocab.token_bytes, tokens))) for tokens in (old, new)
        )
        if before is None or after is None:
            return
        for prefix in _BEFORE:
            one, other = self._tokens(prefix + before[1]), self._tokens(prefix + after[1])
            common = common_prefix_length(one, other)
            if common < min(len(one), len(other)):
                yield one[common:], other[common:]

    def _tokens(self, text: bytes) -> list[int]:
        return self._vocab.tokenize(text, add_special=False, parse_special=False)
