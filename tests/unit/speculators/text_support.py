"""Short words for what the tests of text speculators do all the time."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.speculators.base import Speculator
from headstart.structures.vocabulary_id import VocabularyId
from headstart.types import Draft, DraftRequest

VOCABULARY = VocabularyId(100, bytes(16))


def propose(
    speculator: Speculator,
    tokens: Sequence[int],
    max_tokens: int = 8,
    seq_id: int = 0,
    namespace: str = "",
) -> Draft:
    request = DraftRequest(seq_id, list(tokens), max_tokens, namespace=namespace)
    return speculator.propose([request])[0]


def tokens_of(
    speculator: Speculator, tokens: Sequence[int], max_tokens: int = 8, seq_id: int = 0
) -> list[int]:
    return list(propose(speculator, tokens, max_tokens, seq_id).tokens)


def accept(speculator: Speculator, history: list[int], emitted: list[int]) -> None:
    history += emitted
    speculator.accept(0, emitted, 0)
