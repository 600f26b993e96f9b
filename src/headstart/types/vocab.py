"""A model's vocabulary, and which of its tokens a text may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Ids of the markers of fill-in-the-middle prompts; None where the vocabulary has none."""

    prefix: int | None = None
    suffix: int | None = None
    middle: int | None = None
    repository: int | None = None  # before the name of a project
    file: int | None = None  # before the name of each of its files


class Vocab(Protocol):
    """A model's vocabulary. Thread-safe."""

    size: int
    eog_ids: frozenset[int]  # end-of-generation tokens
    bos_id: int | None
    eos_id: int | None
    fim: FimTokens
    add_bos: bool

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text; `parse_special` reads `<|im_end|>` as one token."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens."""

    def token_text(self, token: int) -> bytes:
        """Like `token_bytes`, but control tokens show their spelling."""

    def is_control(self, token: int) -> bool:
        """Whether the token is a marker that users should not see."""


class Legality(Protocol):
    """Which tokens a request's constraint leaves, at the place where its text stands."""

    is_over: bool  # the text is complete and nothing may follow

    @property
    def is_active(self) -> bool:
        """Whether the text is constrained now, rather than free until a trigger appears."""

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""

    def legal_mask(self) -> NDArray[np.bool_]:
        """Of each token of the vocabulary whether it may come next; at least one may."""

    def forced(self) -> Sequence[int]:
        """Tokens that must follow: where there are any, only the first of them may come next."""

    def read(self, token: int) -> None:
        """The text grew by this token, which was legal."""
