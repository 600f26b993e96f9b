"""Images and sounds in a prompt: chunks of cells with ids below zero.

A prompt stays a list of ints. A cell of an image has an id derived from the file's content and its
place in the chunk, so that all code that compares, caches or counts prompts works as with text. One
bit marks the start of a chunk: chunks are reused as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import shake_128
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from headstart.types.request import ErrorEvent, ReplyEvent

_BEGIN = 1 << 30  # set in the id of a chunk's first cell
PLACEHOLDER = 0  # replaces cells where only tokens are possible: in batches and texts of models


@dataclass(frozen=True, slots=True)
class MediaChunk:
    """Cells that belong together: an image, a tile of one, or 30 seconds of sound."""

    key: bytes  # hash of everything its embeddings depend on
    num_cells: int

    def ids(self) -> list[int]:
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
    """Asks what files become in a prompt; the reply: the parts of each file."""

    request_id: str
    files: tuple[bytes, ...]
    namespace: str = ""  # of the client: only its own requests find the chunks


class LoadedChunk(Protocol):
    """A chunk in the engine's process."""

    num_cells: int
    is_whole: bool  # all cells are decoded at once

    def prepare(self, asker: object) -> bool:
        """Have its embeddings computed; returns whether they are.

        `asker`: the request that will `drop` it.
        """

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for its embeddings."""

    def drop(self, asker: object) -> None:
        """Release the chunk for a request that left; other requests ask again if necessary."""


class MediaStore(Protocol):
    """Chunks that requests may name."""

    def find(self, chunk: MediaChunk) -> LoadedChunk | None:
        """The chunk, unless it was evicted."""

    def ask(self, question: MediaQuestion) -> None:
        """Start answering a question."""

    def cancel(self, request_id: str) -> None:
        """Drop a question."""

    @property
    def has_work(self) -> bool:
        """Whether a question is unanswered."""

    def answers(self, seconds: float) -> list[ReplyEvent | ErrorEvent]:
        """Finished answers; waits at most `seconds` for one."""


def chunk_begin(tokens: Sequence[int], length: int) -> int:
    """`length`, or the start of the chunk that would be cut there."""
    if 0 < length < len(tokens):
        while length and (token := tokens[length]) < 0 and not token & _BEGIN:
            length -= 1
    return length


def readable(tokens: Sequence[int], placeholder: int = PLACEHOLDER) -> list[int]:
    """The tokens, with placeholders for image cells."""
    return [token if token >= 0 else placeholder for token in tokens]
