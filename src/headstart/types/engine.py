"""A model with a cache of sequences: what goes into a decode and what comes out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.types.sampling_params import SamplingParams


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


if TYPE_CHECKING:
    from concurrent.futures import Future

    from headstart.types.media import LoadedChunk

Logits = NDArray[np.float32]
"""Shape (rows, vocab_size), or (vocab_size,) for one row; a view that the next decode overwrites.
"""


class CacheKind(Enum):
    """What a model's memory allows after a draft was rejected."""

    CUT = "cut"  # attention: any tail can be dropped
    # attention with sliding windows: a tail can be dropped where the window is still held
    WINDOW = "window"
    # recurrent with snapshots: the last few tokens of one decode can be dropped
    ROLLBACK = "rollback"
    CHECKPOINT = "checkpoint"  # recurrent: back to checkpoints only


class Batch:
    """Rows for one decode, in numpy arrays that are filled anew every step.

    Rows of one sequence are adjacent and in order of position. Output rows come back from
    `Engine.decode` in the order in which they were added. Cells of an image are decoded by
    themselves: `media` has the chunk, and the first of its cells that is in the batch.
    """

    __slots__ = (
        *("media", "num_outputs", "num_rows", "positions", "seq_ids", "tokens"),
        "wants_logits",
    )

    def __init__(self, capacity: int) -> None:
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.seq_ids = np.zeros(capacity, np.int32)
        self.wants_logits = np.zeros(capacity, np.int8)
        self.num_rows = 0
        self.num_outputs = 0
        self.media: tuple[LoadedChunk, int] | None = None

    @property
    def capacity(self) -> int:
        return len(self.tokens)

    def clear(self) -> None:
        self.num_rows = 0
        self.num_outputs = 0
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
        """Append rows of any sequences that all produce logits, in four writes for all of them."""
        start, end = self.num_rows, self.num_rows + len(tokens)
        self.tokens[start:end] = tokens
        self.positions[start:end] = positions
        self.seq_ids[start:end] = seq_ids
        self.wants_logits[start:end] = 1
        self.num_rows = end
        self.num_outputs += len(tokens)


class Filters(Protocol):
    """A request's truncation and temperature, as the engine implements them.

    Stateless but for `accept`, which feeds samplers that look at the text (DRY).
    """

    # a candidate whose logit is that far above all others is the only one that survives, unless the
    # text or a bias changes logits; None: the logits alone do not decide
    decisive_gap: float | None

    def apply(
        self, ids: NDArray[np.int32], logits: NDArray[np.float32], use_xtc: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Surviving (ids, logits after temperature). Views, valid until the next call.

        `ids` must come sorted by falling logit unless all of the vocabulary is passed.
        """

    def accept(self, token: int) -> None:
        """The text grew by this token."""


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
    # one that no request has, for rows that only make a decode wider; None: there can be none
    padding_sequence: int | None
    # rows that attention computes together, over all cells that any of them sees; 1: each by itself
    attention_tile: int
    cache_kind: CacheKind
    window: int  # tokens that sliding windows see; 0: none
    # draft tokens of one decode that can be taken back; huge for attention only, and where
    # `keep_for_draft` makes it possible
    max_rollback: int
    can_shift: bool  # whether `shift` is possible
    # whether tokens can be saved without those before them: each has cells of its own, and all
    # sequences share one cache
    has_blocks: bool

    @property
    def is_asynchronous(self) -> bool:
        """Whether a device computes by itself between `launch` and `wait`."""

    def launch(self, batch: Batch) -> None:
        """Hand over rows to decode. The batch and the engine are not to be used until `wait`.

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

    def keep_for_draft(self, seq_id: int) -> bool:
        """Before a decode that has a draft: make it possible to rewind to the present length.

        Costs the time of a copy where the memory is CHECKPOINT, nothing elsewhere. False if it
        cannot be; then the draft must not be decoded.
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

    def restore_sequence(self, seq_id: int, data: bytes | bytearray | memoryview) -> int:
        """Replace the sequence by a saved one, of this engine or of one with the same settings.

        Returns its length; 0 (and the sequence is empty) if there is no room for it, which
        `lacks_cells` tells, or the data is of another kind of cache.
        """

    def save_block(self, seq_id: int, start: int, end: int) -> bytearray:
        """What the cache holds of the tokens from `start` to `end`; where `has_blocks`."""

    def restore_block(self, seq_id: int, data: bytes | bytearray | memoryview) -> bool:
        """Append a saved block to a sequence that ends where it starts; False if there is no room,
        and the sequence is as it was.
        """

    @property
    def lacks_cells(self) -> bool:
        """Whether the last sequence that could not be restored found too few free cells."""

    def begin_filters(self, params: SamplingParams) -> Future[object] | None:
        """What a thread does before `make_filters` takes no time; None: nothing. It does one thing
        at a time, so this may be for another request: ask again once it is done.
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
    vocab_type: int = 0  # libllama's number
