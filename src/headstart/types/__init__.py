"""Values and protocols that cross folder borders. Imports nothing else of this package at run time.

A *row* is one token decoded at one position of one sequence. A *sequence* is a line of the
KV cache. Token ids are plain ints; text is bytes, because a token may end inside a character.

Values are never changed once they are made. Those that are made for each slot and step are not
frozen dataclasses all the same: to make a frozen one takes a microsecond, seven times as long.
"""

from __future__ import annotations

from headstart.types.drafts import (
    LAST_STATE,
    NO_DRAFT,
    Choose,
    DecodedStates,
    Draft,
    DraftLegality,
    DraftMode,
    DraftRequest,
    TokenChoice,
)
from headstart.types.engine import (
    Batch,
    CacheKind,
    ContextFullError,
    Engine,
    Filters,
    FimTokens,
    Logits,
    ModelInfo,
    Vocab,
)

__all__ = [
    "LAST_STATE",
    "NO_DRAFT",
    "Batch",
    "CacheKind",
    "Choose",
    "ContextFullError",
    "DecodedStates",
    "Draft",
    "DraftLegality",
    "DraftMode",
    "DraftRequest",
    "Engine",
    "Filters",
    "FimTokens",
    "Logits",
    "ModelInfo",
    "TokenChoice",
    "Vocab",
]
