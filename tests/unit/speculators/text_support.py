"""Short words for what the tests of text speculators do all the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headstart.speculators.base import Speculator
from headstart.speculators.ngram_cache_counts import NgramCounts
from headstart.types import Draft, DraftRequest


def unpack(key: int) -> tuple[int, ...]:
    """The n-gram of a number made by `pack`."""
    ngram: list[int] = []
    while key:
        ngram.append((key & (1 << 24) - 1) - 1)
        key >>= 24
    return tuple(reversed(ngram))


def items_of(counts: NgramCounts) -> dict[tuple[int, ...], dict[int, int]]:
    """All n-grams with what followed them."""
    return {unpack(key): dict(counts.after(key) or {}) for key in counts._table}


def propose(
    speculator: Speculator,
    tokens: Sequence[int],
    max_tokens: int = 8,
    seq_id: int = 0,
    namespace: str = "",
) -> Draft:
    """A draft behind these tokens; the sequence begins with them unless it has come there."""
    known: Any = getattr(speculator, "histories", {}).get(seq_id)
    if known is None or list(known.tokens) != list(tokens):
        speculator.begin(seq_id, tokens, namespace)
    request = DraftRequest(seq_id, list(tokens), max_tokens, namespace=namespace)
    return speculator.propose([request])[0]


def tokens_of(
    speculator: Speculator, tokens: Sequence[int], max_tokens: int = 8, seq_id: int = 0
) -> list[int]:
    return list(propose(speculator, tokens, max_tokens, seq_id).tokens)


def accept(speculator: Speculator, history: list[int], emitted: list[int]) -> None:
    history += emitted
    speculator.accept(0, emitted, 0)
