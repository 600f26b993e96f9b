"""What a draft model has of each sequence, and a draft while it grows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headstart.types import NO_DRAFT, Draft, DraftRequest
from headstart.vocabulary.draft_tokenizer import DraftBuilder, DraftTokenizer


@dataclass(slots=True)
class CachedSequence:
    """One sequence in the draft model's cache, in the draft model's own tokens.

    tokens[0 : synced]       equal the history
    tokens[synced : ]        drafted earlier; compared with the history before they are used
    """

    tokenizer: DraftTokenizer
    tokens: list[int] = field(default_factory=list)
    synced: int = 0
    num_history: int = 0  # target tokens of the history, as far as accepted
    # of them, given to the tokenizer; what it was given beyond may be a rejected draft
    num_translated: int = 0
    num_caught_up: int = 0  # of them, in the cache; an estimate where the vocabularies differ
    num_kept: int = 0  # of them, in the state that is kept, where nothing is taken back
    kept: int = 0  # tokens in that state
    prompt: Sequence[int] = ()  # target tokens, until they are read
    is_unread: bool = True  # nothing was drafted for this request yet
    is_new: bool = True  # and others may hold more of its prompt
    last_used: int = 0  # number of the call
    start: int = 0  # where the last draft began: beyond the history if it continued another's draft
    last: DraftBuilder | None = None  # the last draft
    is_open: bool = False

    def hold(self, tokens: list[int]) -> None:
        """Note what the cache holds now; no state of it is kept."""
        self.tokens, self.kept, self.num_kept = tokens, 0, 0
        self.synced = self.num_caught_up = len(tokens)


def closed_half(sequences: Mapping[int, CachedSequence], busy: Collection[int]) -> list[int]:
    """Of the closed sequences that hold something, the half that was used longest ago."""
    closed = [
        seq_id
        for seq_id, sequence in sequences.items()
        if not sequence.is_open and sequence.tokens and seq_id not in busy
    ]
    closed.sort(key=lambda seq_id: sequences[seq_id].last_used)
    return closed[: (len(closed) + 1) // 2]


@dataclass(slots=True)
class DraftInProgress:
    """One request's draft while it grows."""

    request: DraftRequest
    sequence: CachedSequence
    builder: DraftBuilder | None = None  # of this draft; None where there can be none
    num_catch_up: int = 0  # tokens of the history that the cache does not have
    num_settled: int = 0  # tokens of the history that stay as they are, whatever is accepted
    pending: list[int] = field(default_factory=list)  # to decode next
    reason: str = ""  # why there is no draft

    @property
    def is_active(self) -> bool:
        builder = self.builder
        return (
            builder is not None
            and not self.reason
            and bool(self.pending)
            and len(builder.tokens) < builder.limit
        )

    @property
    def is_read(self) -> bool:
        """Whether all of the history was decoded."""
        return self.builder is not None and not self.reason

    @property
    def has_begun(self) -> bool:
        """Whether it has a token."""
        return self.builder is not None and bool(self.builder.tokens)

    def extend(self, logits: NDArray[np.float32]) -> None:
        """Pick the next token from the row after the last one; none ends the draft."""
        token = (
            None
            if self.builder is None
            else self.builder.extend(logits, self.request.min_confidence)
        )
        self.pending = [] if token is None else [token]

    def finish(self, name: str) -> Draft:
        if self.builder is None or self.reason:
            return Draft(reason=self.reason, is_ready=False)
        tokens, confidence = self.builder.finish()
        stopped_at = self.builder.stopped_at
        if not tokens:
            if self.has_begun:
                return NO_DRAFT
            return Draft(reason="draft model is unsure", stopped_at=stopped_at)
        # of the draft all but the last, if they are accepted
        self.sequence.num_caught_up += len(tokens) - 1
        return Draft(tokens, confidence, name, stopped_at=stopped_at)


__all__ = ["CachedSequence", "DraftInProgress", "closed_half"]
