"""Values and protocols that cross folder borders. Imports nothing from this package at run time.

A *row* is one token decoded at one position of one sequence. A *sequence* is a line of the
KV cache. Token ids are plain ints; text is bytes, because a token may end inside a character.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from headstart.sampling.params import SamplingParams

Logits = NDArray[np.float32]
"""Shape (rows, vocab_size), or (vocab_size,) for one row; a view that the next decode overwrites.
"""

Choose = Callable[[NDArray[np.float32], int], "TokenChoice"]
"""How a draft model may pick as the request would: (logits of one row, position) -> TokenChoice."""


class Capability(Enum):
    """What a speculator may ask the scheduler to provide."""

    LOGITS = "logits"  # `observe` receives the logits of every verified row
    # `observe_states` receives hidden states of every row that the target decodes, prompts
    # included, and the speculator is told what becomes of the target's sequences
    HIDDEN_STATES = "hidden_states"


LAST_STATE = -1
"""Among numbers of layers: the state that a model's own multi-token heads continue."""


class MemoryKind(Enum):
    """What a model's memory allows after a draft was rejected."""

    CUT = "cut"  # attention: any tail can be dropped
    # attention with sliding windows: a tail can be dropped where the window is still held
    WINDOW = "window"
    # recurrent with snapshots: the last few tokens of one decode can be dropped
    ROLLBACK = "rollback"
    CHECKPOINT = "checkpoint"  # recurrent: back to checkpoints only


class SequenceMode(Enum):
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


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One generating sequence that asks for draft tokens.

    tokens[:-1] are in the target's cache; tokens[-1] was emitted and not decoded yet. `tokens` is
    the scheduler's own list: read it during the call, never keep or change it.
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


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess: tokens that may follow, with a score for each.

    `confidence[i]` is about token i *given that the tokens before it are right*: never a running
    product. It is a probability up to 1 (a model's, or a share of counts), or a score above 1 (a
    match length); finite and not negative. `control` learns what scores are worth and multiplies
    what comes of them. Empty means no guess; then `reason` may say why, and a model that did not
    get as far as guessing is not `is_ready`.
    """

    tokens: Sequence[int] = ()
    confidence: Sequence[float] = ()
    speculator: str = ""  # set by the scheduler
    reason: str = ""  # one of a few fixed texts: each is counted by itself
    is_ready: bool = True  # False: it still reads, or cannot; says nothing about its guesses
    # accept so many unseen: only where the class says `skips_verification`
    num_unverified: int | None = None


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of the last target decode that produced logits, for `Speculator.observe`.

    All arrays have one entry per row, rows of one sequence are adjacent and in order. Sequences
    that have not begun, or do not draft, are among them.
    """

    seq_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    tokens: NDArray[np.int32]
    logits: Logits  # (rows, vocab_size), a read-only view: copy what must outlive the call


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


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one scheduler step did; counts of rows and tokens, times in seconds."""

    num_prompt_rows: int = 0
    num_verify_rows: int = 0
    num_padding_rows: int = 0
    num_emitted: int = 0
    num_slots: int = 0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    step_seconds: float = 0.0


class Batch:
    """Rows for one decode, in numpy arrays that are filled anew every step.

    Rows of one sequence are adjacent and in order of position. Output rows come back from
    `Engine.decode` in the order in which they were added.
    """

    __slots__ = ("num_outputs", "num_rows", "positions", "seq_ids", "tokens", "wants_logits")

    def __init__(self, capacity: int) -> None:
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.seq_ids = np.zeros(capacity, np.int32)
        self.wants_logits = np.zeros(capacity, np.int8)
        self.num_rows = 0
        self.num_outputs = 0

    @property
    def capacity(self) -> int:
        return len(self.tokens)

    def clear(self) -> None:
        self.num_rows = 0
        self.num_outputs = 0

    def add(self, seq_id: int, position: int, tokens: Sequence[int], num_outputs: int) -> None:
        """Append adjacent rows; the last `num_outputs` of them produce logits."""
        start, end = self.num_rows, self.num_rows + len(tokens)
        self.tokens[start:end] = tokens
        self.positions[start:end] = range(position, position + len(tokens))
        self.seq_ids[start:end] = seq_id
        self.wants_logits[start : end - num_outputs] = 0
        self.wants_logits[end - num_outputs : end] = 1
        self.num_rows = end
        self.num_outputs += num_outputs


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


class DraftLegality(Protocol):
    """Which tokens the text may have where a draft stands; it follows the draft, token by token.

    Where it cannot follow any more it says that nothing is legal.
    """

    def legal_mask(self, token: int) -> NDArray[np.bool_] | None:
        """None if `token` may come next, else a mask of the tokens that may, perhaps of none."""

    def read(self, token: int) -> None:
        """The draft grew by this token."""


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


class Filters(Protocol):
    """A request's truncation and temperature, as the engine implements them.

    Stateless but for `accept`, which feeds samplers that look at the text (DRY).
    """

    def apply(
        self, ids: NDArray[np.int32], logits: NDArray[np.float32], use_xtc: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Surviving (ids, logits after temperature). Views, valid until the next call.

        `ids` must come sorted by falling logit unless all of the vocabulary is passed.
        """

    def accept(self, token: int) -> None:
        """The text grew by this token."""


class ContextFullError(Exception):
    """No free cells for this batch; nothing changed. The scheduler makes room and retries."""


class Engine(Protocol):
    """A model with a cache of sequences. One thread at a time.

    The cache of a sequence always holds positions 0 .. n-1 without gaps.
    """

    vocab_size: int
    context_size: int  # most tokens one sequence can hold
    num_cells: int  # tokens that all sequences together can hold
    max_batch_tokens: int  # most rows in one decode
    max_outputs: int  # most rows with logits in one decode
    # one that no request has, for rows that only make a decode wider; None: there can be none
    padding_sequence: int | None
    # a decode of other rows, outputs or sequences than the last takes longer: its graph is sent
    sends_graphs: bool
    memory: MemoryKind
    max_rollback: int  # tokens of one decode that `truncate` may drop; huge for attention only
    can_shift: bool  # whether `shift` is possible

    def decode(self, batch: Batch) -> Logits:
        """Decode all rows; logits of the output rows, shape (num_outputs, vocab_size).

        Raises:
            ContextFullError: the cache has no room; nothing was changed.
            EngineError: the engine failed.
        """

    def publish_states(self, layers: Collection[int]) -> None:
        """Keep hidden states in all decodes from now on: inputs of layers, or LAST_STATE.

        Raises:
            ModelError: this model or this libllama cannot show them.
        """

    def hidden_states(self) -> Mapping[int, NDArray[np.float32]]:
        """By layer, of all rows of the last decode in their order, shape (rows, width).

        Views that the next decode overwrites; nothing unless `publish_states` asked for it.
        """

    def truncate(self, seq_id: int, length: int) -> bool:
        """Keep the first `length` tokens. False (and nothing changed) if this memory cannot."""

    def shift(self, seq_id: int, start: int, end: int) -> bool:
        """Drop tokens `start` to `end`, move later ones forward; False: no room, it is empty."""

    def reusable(self, seq_id: int, length: int, *, by_copy: bool = False) -> int:
        """How many of the first `length` tokens `rewind` would keep, or `copy_prefix` can copy."""

    def rewind(self, seq_id: int, length: int) -> int:
        """Keep at most the first `length` tokens, as many as this memory can give back.

        Returns how many are left: `length` where `truncate` is possible, else the length of the
        last checkpoint before it, or 0 and the sequence is empty.
        """

    def checkpoint(self, seq_id: int) -> None:
        """Make it possible to rewind the sequence to the length that it has now.

        Costs time and memory where the memory cannot be cut anywhere, nothing elsewhere.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        """Make `target` (emptied first) share the first `length` tokens of `source`.

        Possible for each `length` that `reusable` returns for copies, if there is room. Else False,
        and `target` is empty.
        """

    def clear(self, seq_id: int) -> None:
        """Forget the sequence and free its cells."""

    def save_sequence(self, seq_id: int) -> bytearray:
        """All that the cache holds of the sequence, to be put back by `restore_sequence`."""

    def restore_sequence(self, seq_id: int, data: bytes | bytearray | memoryview) -> bool:
        """Replace the sequence by a saved one, of this engine or of one with the same settings.

        False (and the sequence is empty) if there is no room for it or the data is of another
        kind of cache.
        """

    def write_sequence(self, seq_id: int, path: Path, tokens: Sequence[int]) -> int:
        """Save the sequence and its tokens to a file; returns its bytes.

        Raises:
            EngineError: it cannot be written.
        """

    def read_sequence(self, seq_id: int, path: Path) -> tuple[list[int], int]:
        """Replace the sequence by a saved one; returns its tokens and the bytes read.

        Raises:
            InvalidParameterError: the file cannot be used; the sequence is empty.
        """

    def make_filters(self, params: SamplingParams) -> Filters:
        """Filters for one request."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the outside may know about a loaded model. Sizes in bytes, counts of tokens."""

    path: str
    name: str
    architecture: str
    num_params: int
    size_bytes: int
    vocab_size: int
    context_size: int
    train_context_size: int
    num_layers: int
    embedding_size: int
    memory: str
    file_type: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
