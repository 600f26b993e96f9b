"""Images and sounds in a prompt: chunks of cells with ids below zero.

A prompt stays a list of ints. A cell of an image has an id that follows from the file's content
and from its place in the chunk, so that whatever compares, keeps, shares or counts prompts works
as it does with text. One bit says where a chunk begins: a chunk is known as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import shake_128
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from headstart.types.request import ErrorEvent, ReplyEvent

_BEGIN = 1 << 30  # of an id: the first cell of a chunk
PLACEHOLDER = 0  # stands for a cell where only tokens can be: in speculators' texts


@dataclass(frozen=True, slots=True)
class MediaChunk:
    """Cells that belong together: an image, a tile of one, or 30 seconds of sound."""

    key: bytes  # hash of all that its embeddings depend on
    num_cells: int

    def ids(self) -> list[int]:
        """What stands for the cells in a prompt."""
        seed = self.key + self.num_cells.to_bytes(4, "little")
        ids = np.frombuffer(shake_128(seed).digest(4 * self.num_cells), "<i4").copy()
        ids |= -(2**31)
        ids &= ~_BEGIN
        ids[0] |= _BEGIN
        found: list[int] = ids.tolist()
        return found


MediaPart = tuple[int, ...] | MediaChunk
"""What a file becomes in a prompt: chunks, and tokens around and between them."""


@dataclass(frozen=True, slots=True)
class MediaQuestion:
    """What files become in a prompt; the reply: the parts of each file."""

    request_id: str
    files: tuple[bytes, ...]
    namespace: str = ""  # of who asks: only its own requests find the chunks


class LoadedChunk(Protocol):
    """A chunk where the engine is."""

    num_cells: int
    is_whole: bool  # all cells are decoded at once

    @property
    def for_draft(self) -> LoadedChunk | None:
        """What the draft model sees there, if it sees images."""

    def is_ready(self, asker: object | None) -> bool:
        """Whether it can be decoded; its embeddings begin to be computed if not.

        `asker`: who drops it later; None: one beside the request that does.
        """

    def wait(self, seconds: float) -> None:
        """Wait so long for that."""

    def drop(self, asker: object) -> None:
        """A request has left, which may have asked; one that still waits asks again if need be."""


class MediaStore(Protocol):
    """Chunks that requests may name."""

    def find(self, chunk: MediaChunk) -> LoadedChunk | None:
        """The chunk, unless so many came after it that it was forgotten."""

    def ask(self, question: MediaQuestion) -> None:
        """Begin to answer a question."""

    def cancel(self, request_id: str) -> None:
        """Nobody waits for the answer any more."""

    @property
    def has_work(self) -> bool:
        """Whether a question is not answered yet."""

    def answers(self, seconds: float) -> list[ReplyEvent | ErrorEvent]:
        """What was found out; waits so long for it."""


def chunk_begin(tokens: Sequence[int], length: int) -> int:
    """`length`, or where the chunk begins in which it ends."""
    if 0 < length < len(tokens):
        while length and (token := tokens[length]) < 0 and not token & _BEGIN:
            length -= 1
    return length


def readable(tokens: Sequence[int]) -> list[int]:
    """The tokens, with a placeholder for each cell of an image."""
    return [token if token >= 0 else PLACEHOLDER for token in tokens]
