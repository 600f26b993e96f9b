"""The engine's interface: a model with a cache of sequences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.types.rows import Rows
from headstart.types.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Token ids of fill-in-the-middle markers; None if the vocabulary lacks one."""

    prefix: int | None = None
    suffix: int | None = None
    middle: int | None = None
    repository: int | None = None  # precedes the name of a project
    file: int | None = None  # precedes the name of each file


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

    def token_bytes(self, token: int, /) -> bytes:
        """The bytes of a token; empty for control tokens."""

    def token_text(self, token: int, /) -> bytes:
        """Like `token_bytes`, but control tokens show their spelling."""

    def is_control(self, token: int) -> bool:
        """Whether the token is a marker that users should not see."""


if TYPE_CHECKING:
    from concurrent.futures import Future

    from headstart.types.media import LoadedChunk

Bytes = bytes | bytearray | memoryview
Logits = NDArray[np.float32]
"""Shape (rows, vocab_size), or (vocab_size,) for one row; a view until the next decode."""


class CacheKind(Enum):
    """What a model's cache allows after a draft was rejected."""

    CUT = "cut"  # attention: any suffix can be dropped
    # attention with sliding windows: a suffix can be dropped if the window is still cached
    WINDOW = "window"
    # recurrent with snapshots: the last few tokens of one decode can be dropped
    ROLLBACK = "rollback"
    CHECKPOINT = "checkpoint"  # recurrent: only back to checkpoints

    @property
    def is_recurrent(self) -> bool:
        return self in (CacheKind.ROLLBACK, CacheKind.CHECKPOINT)


class Batch:
    """Rows for one decode, in numpy arrays that are refilled every step.

    Rows of one sequence are adjacent and in order of position. `Engine.decode` returns output rows
    in the order in which they were added. Cells of an image are decoded separately: `media` has the
    chunk, and the index of its first cell in the batch. A draft model's rows may carry hidden
    states, of the tokens before theirs, or consist of states alone.
    """

    __slots__ = (
        *("has_tokens", "head", "media", "native", "num_outputs", "num_rows", "positions"),
        *("prompts", "seq_ids", "states", "tokens", "wants_logits"),
    )

    def __init__(self, capacity: int, state_width: int = 0, *, has_tokens: bool = True) -> None:
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.seq_ids = np.zeros(capacity, np.int32)
        self.wants_logits = np.zeros(capacity, np.int8)
        self.states = np.zeros((capacity, state_width), np.float32)
        self.has_tokens = has_tokens
        self.head = 0  # index of the multi-token head that computes the batch
        self.num_rows = 0
        self.num_outputs = 0
        self.prompts = set[int]()  # sequences whose rows belong to prompts
        self.media: tuple[LoadedChunk, int] | None = None
        self.native: Any = None  # the engine's own form of these arrays

    @property
    def capacity(self) -> int:
        return len(self.tokens)

    def clear(self) -> None:
        self.num_rows = 0
        self.num_outputs = 0
        self.prompts.clear()
        self.media = None

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

    def extend(
        self, seq_ids: Sequence[int], positions: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Append rows of any sequences that all produce logits, with four writes in total."""
        start, end = self.num_rows, self.num_rows + len(tokens)
        self.tokens[start:end] = tokens
        self.positions[start:end] = positions
        self.seq_ids[start:end] = seq_ids
        self.wants_logits[start:end] = 1
        self.num_rows = end
        self.num_outputs += len(tokens)

    def add_rows(
        self, seq_id: int, position: int, tokens: Sequence[int], states: NDArray[np.float32]
    ) -> None:
        """Append adjacent rows without outputs; `states` has one row per token."""
        start = self.num_rows
        self.add(seq_id, position, tokens, 0)
        self.states[start : self.num_rows] = states

    def want_all(self) -> None:
        """Request logits and states for all rows."""
        self.wants_logits[: self.num_rows] = 1
        self.num_outputs = self.num_rows


class Filters(Protocol):
    """A request's truncation and temperature, as the engine implements them.

    Stateless except for `accept`, which feeds samplers that read the text (DRY).
    """

    # a candidate with this lead over all others is the only survivor, unless the text or a bias
    # changes logits; None: the logits alone do not decide
    decisive_gap: float | None

    def apply(
        self, ids: NDArray[np.int32], logits: NDArray[np.float32], use_xtc: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Surviving (ids, logits after temperature). Views, valid until the next call.

        `ids` must be sorted by descending logit unless the whole vocabulary is passed.
        """

    def accept(self, token: int) -> None:
        """Append a token to the text."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The non-truncatable part of the cache at `length` tokens."""

    length: int
    data: Bytes
    is_in_place: bool = False  # stored on the device; `data` only refers to it


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """A whole sequence. It refers to its checkpoints, which sequences have in common."""

    state: Bytes
    checkpoints: tuple[Checkpoint, ...] = ()
    text: Bytes = b""  # its tokens, if only the owner of the cache knows them

    @property
    def parts(self) -> list[Bytes]:
        return [self.state, *(c.data for c in self.checkpoints), self.text]

    def __len__(self) -> int:
        """Size in bytes."""
        return sum(map(len, self.parts))


class ContextFullError(Exception):
    """No free cells for this batch or sequence. The scheduler makes room and retries."""


class Engine(Protocol):
    """A model with a cache of sequences. One thread at a time.

    The cache of a sequence always holds positions 0 .. n-1 without gaps.
    """

    vocab_size: int
    context_size: int  # most tokens one sequence can hold
    num_cells: int  # tokens that all sequences together can hold
    max_batch_tokens: int  # most rows in one decode
    max_outputs: int  # most rows with logits in one decode
    # a sequence not used by requests, for rows that only make a decode wider; None: not available
    padding_sequence: int | None
    # rows that attention computes together, over all cells that any of them sees; 1: separately
    attention_tile: int
    has_reference: bool  # has other kernels, those of a CPU that agree in more widths
    cache_kind: CacheKind
    rows: Rows
    window: int  # tokens seen by sliding windows; 0: none
    # draft tokens of one decode that can be rolled back; huge for pure attention, and if
    # `keep_for_draft` makes it possible
    max_rollback: int
    can_shift: bool  # whether `shift` is supported
    # whether tokens can be saved without those before them: each has its own cells, and all
    # sequences share one cache
    has_blocks: bool

    @property
    def is_asynchronous(self) -> bool:
        """Whether a device computes asynchronously between `launch` and `wait`."""

    @property
    def has_prompt_widths(self) -> bool:
        """Whether prompts have kernels of their own: answers in the cache are no part of them."""

    def launch(self, batch: Batch) -> None:
        """Start decoding a batch. Do not use the batch or the engine until `wait`.

        Raises:
            ContextFullError: the cache has no room; nothing was changed.
            EngineError: the engine failed.
        """

    def wait(self) -> Logits:
        """Logits of the output rows that were launched, shape (num_outputs, vocab_size).

        A view that the next launch overwrites.
        """

    def decode(self, batch: Batch) -> Logits:
        """Launch and wait."""

    def publish_states(self, layers: Collection[int]) -> None:
        """Keep hidden states in all decodes from now on: inputs of layers, or LAST_STATE.

        Raises:
            ModelError: this model or this libllama cannot provide them.
        """

    def hidden_states(self) -> Mapping[int, NDArray[np.float32]]:
        """By layer, of all rows of the last decode in their order, shape (rows, width).

        Views that the next decode overwrites; empty without `publish_states`.
        """

    def show_final_states(self, *, is_on: bool) -> None:
        """Whether `hidden_states` has FINAL_STATE too, if there is a way to see it.

        While it is on, all rows must want logits.
        """

    def truncate(self, seq_id: int, length: int) -> bool:
        """Keep the first `length` tokens. False (and no change) if the cache cannot."""

    def shift(self, seq_id: int, start: int, end: int) -> bool:
        """Drop tokens `start` to `end` and close the gap; False: no room, and now empty."""

    def reusable(self, seq_id: int, length: int, *, by_copy: bool = False) -> int:
        """How many of the first `length` tokens `rewind` would keep, or `copy_prefix` can copy."""

    def rewind(self, seq_id: int, length: int) -> int:
        """Keep at most the first `length` tokens, as many as this cache can restore.

        Returns how many are left: `length` if `truncate` is possible, else the length of the last
        checkpoint before it, or 0.
        """

    def checkpoint(self, seq_id: int) -> None:
        """Make it possible to rewind the sequence to its current length.

        Free for caches that can be truncated anywhere; others take time and memory.
        """

    def keep_for_draft(self, seq_id: int) -> bool:
        """Before decoding a draft: make it possible to rewind to the current length.

        Takes the time of a copy for CHECKPOINT, none for others. If it returns False the draft must
        not be decoded.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        """Make `target` (emptied first) share the first `length` tokens of `source`.

        Possible for each `length` that `reusable` returns for copies, if there is room. Otherwise
        returns False, and `target` is empty.
        """

    def clear(self, seq_id: int) -> None:
        """Empty the sequence and free its cells."""

    def wipe(self) -> None:
        """Overwrite all cells; every sequence must be empty."""

    def save_sequence(self, seq_id: int) -> SavedState:
        """The whole cached state of the sequence, for `restore_sequence`."""

    def restore_sequence(self, seq_id: int, data: SavedState) -> int:
        """Replace the sequence by a saved one, from this engine or one with the same settings.

        Returns its length; 0 (and the sequence is empty) if there is no room for it (then
        `lacks_cells`), or the data is of another kind of cache.
        """

    def save_block(self, seq_id: int, start: int, end: int) -> bytearray:
        """The cached state of tokens `start` to `end`; only with `has_blocks`."""

    def restore_block(self, seq_id: int, data: Bytes) -> bool:
        """Append a saved block to a sequence that ends at its start. Returns False if there is no
        room; the sequence is unchanged then.
        """

    @property
    def lacks_cells(self) -> bool:
        """Whether the last failed restore was for lack of free cells."""

    def begin_filters(self, params: SamplingParams) -> Future[Filters] | None:
        """Filters for one request if they take long to make, in a thread; else None."""

    def make_filters(self, params: SamplingParams) -> Filters:
        """Filters for one request."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a model drafts several tokens in one decode."""

    size: int  # rows of a block, starting with the last token of the text
    mask_id: int  # placeholder for a token to draft
    # whether the first row drafts the next token; otherwise each row drafts its own token
    has_anchor: bool
    has_confidence: bool  # states are probabilities of acceptance


class DraftContext(Engine, Protocol):
    """A model, or multi-token heads, that draft from a target's hidden states.

    From token p and a state of token p - 1 it predicts token p + 1, and computes its own state of
    token p. Its batches carry states; rows without tokens are written to the cache unchanged. Any
    suffix of a sequence can be dropped. Either all rows of a decode have outputs or none.
    """

    num_heads: int  # each has its own sequences
    state_width: int  # of the states read besides tokens, and of those computed
    # input width of `encode`, or of a batch without tokens: the target's layers concatenated; 0: it
    # reads the target's states directly
    feature_width: int
    shares_target: bool  # it reads the target's cache and writes nothing
    blocks: Blocks | None  # None: drafts token by token

    def outputs(self) -> NDArray[np.float32]:
        """States of the last decode's rows if they had outputs, shape (rows, state_width)."""

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Convert the target's states to those read besides tokens, shape (rows, state_width)."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Public facts about a loaded model. Sizes in bytes, counts of tokens."""

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
    vocab_type: int = 0  # libllama's type id
