"""What speculators are asked, what they answer, and what they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from headstart.types.media import LoadedChunk

Choose = Callable[[NDArray[np.float32], int], "TokenChoice"]
"""How a draft model may pick as the request would: (logits of one row, position) -> TokenChoice."""


LAST_STATE = -1
"""Among numbers of layers: the state that a model's own multi-token heads continue."""


class DraftMode(Enum):
    """How a request wants to be speculated; `AUTO` lets control decide."""

    AUTO = "auto"
    FIXED = "fixed"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """What a draft row suggests under the request's filters: two tokens, their probabilities."""

    coupled: int  # drawn with the noise that the target's token at this position will use
    coupled_probability: float
    argmax: int
    argmax_probability: float


@dataclass(slots=True)
class DraftRequest:
    """One generating sequence that asks for draft tokens.

    tokens[:-1] are in the target's cache; tokens[-1] was emitted and not decoded yet. `tokens` is
    the scheduler's own list and grows: copy what is kept. It cannot be changed.
    """

    seq_id: int
    tokens: Sequence[int]
    max_tokens: int  # >= 1; a longer draft is cut
    min_confidence: float = 0.0  # a model drafter stops before the first token below this
    # models only; None for text speculators and for greedy requests (draft the argmax)
    choose: Choose | None = None
    namespace: str = ""  # hash of the API key: text must not cross it
    # models only; of a constrained request: illegal tokens are cut off later, so pick legal ones
    legality: DraftLegality | None = None
    # models only; that many of `tokens`, at the end, are another speculator's draft behind the
    # newest token: the target has not decoded them
    num_drafted: int = 0
    # models only; the middle of a long text may be left out: see `Speculator.num_recent`
    can_skip: bool = False
    # models only; images that it sees, and where each begins: its cells have ids below zero
    media: tuple[tuple[int, LoadedChunk], ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class Draft:
    """Tokens that may follow, with a score for each.

    `confidence[i]` is about token i *given that the tokens before it are right*: never a running
    product. It is a probability up to 1 (a model's, or a share of counts), or a score above 1 (a
    match length); finite and not negative. `control` learns what scores are worth and multiplies
    what comes of them. Empty means no draft; then `reason` may say why, and a model that did not
    get as far as drafting is not `is_ready`.
    """

    tokens: Sequence[int] = ()
    confidence: Sequence[float] = ()
    speculator: str = ""  # set by the scheduler
    reason: str = ""  # one of a few fixed texts: each is counted by itself
    is_ready: bool = True  # False: it still reads, or cannot; says nothing about its drafts


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class DecodedStates:
    """All rows of the last target decode with their hidden states, for `observe_states`.

    All arrays have one entry per row, rows of one sequence are adjacent and in order. They are
    views that the next decode overwrites: copy what must outlive the call.
    """

    seq_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    tokens: NDArray[np.int32]
    # (rows, width) by layer: what enters the layer, or LAST_STATE
    states: Mapping[int, NDArray[np.float32]]


class DraftLegality(Protocol):
    """Which tokens the text may have where a draft stands; it follows the draft, token by token.

    Where it cannot follow any more it says that nothing is legal.
    """

    def legal_mask(self, token: int) -> NDArray[np.bool_] | None:
        """None if `token` may come next, else a mask of the tokens that may, perhaps of none."""

    def read(self, token: int) -> None:
        """The draft grew by this token."""
