"""The same replacement of a word in other surroundings.

A vocabulary spells a word differently after a space, a bracket or a dot: ` count`, `(count` and `count` may be three
tokens or parts of them. Who has seen one of them replaced knows what becomes of the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from headstart.structures.prefix import common_prefix_length
from headstart.types import Vocab

_BEFORE = (b"", b" ", b"(", b".", b"_", b'"', b"'", b"[", b"\n", b"\t")  # what vocabularies join to a word
_WORD = re.compile(rb" ?(\w+)")

Replacement = tuple[list[int], list[int]]
"""Tokens that were replaced, and by what."""


class Variants:
    """Other spellings of a replaced word in one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    def __call__(self, old: Sequence[int], new: Sequence[int]) -> list[Replacement]:
        """Replacements that follow from this one, itself left out; none if it is not of a word by a word.

        Some hundred microseconds: a request makes few changes.
        """
        words = [_WORD.fullmatch(b"".join(map(self._vocab.token_bytes, tokens))) for tokens in (old, new)]
        if words[0] is None or words[1] is None:
            return []
        found: list[Replacement] = []
        for before in _BEFORE:
            one, other = (self._tokens(before + word[1]) for word in words if word is not None)
            common = common_prefix_length(one, other)
            variant = one[common:], other[common:]
            if all(variant) and variant != (list(old), list(new)) and variant not in found:
                found.append(variant)
        return found

    def _tokens(self, text: bytes) -> list[int]:
        return self._vocab.tokenize(text, add_special=False, parse_special=False)
