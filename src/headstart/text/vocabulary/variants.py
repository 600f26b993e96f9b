"""Derives replacements of the other spellings of a replaced word.

A word has different tokens after a space, a bracket or a dot: ` count`, `(count` and `count`. A
replacement of one implies the others: in the workload `rename` of `benchmarks.replay` that makes a
tenth more tokens a step (auto:suffix).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from headstart.structures.prefix import common_prefix_length
from headstart.types import Vocab

Replacement = tuple[list[int], list[int]]
"""(replaced tokens, new tokens)"""


def variants(vocab: Vocab, old: Sequence[int], new: Sequence[int]) -> Iterator[Replacement]:
    """Replacements implied by this one; none unless a word replaces a word.

    Each takes about ten microseconds; there may be duplicates.
    """
    words = [b"".join(map(vocab.token_bytes, one)) for one in (old, new)]
    before, after = [re.fullmatch(rb" ?(\w+)", word) for word in words]
    if before is None or after is None:
        return
    tokenize = partial(vocab.tokenize, add_special=False, parse_special=False)
    # characters that tokens may join to a word
    for prefix in (b"", b" ", b"(", b".", b"_", b'"', b"'", b"[", b"\n", b"\t"):
        one, other = tokenize(prefix + before[1]), tokenize(prefix + after[1])
        common = common_prefix_length(one, other)
        if common < min(len(one), len(other)):
            yield one[common:], other[common:]
