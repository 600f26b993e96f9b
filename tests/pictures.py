"""Images for the fake engine: chunks of cells that become ready after a while."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.types.media import LoadedChunk, MediaChunk


class FakeChunk:
    """A chunk that is encoded after it was asked for so many times."""

    def __init__(self, chunk: MediaChunk, num_polls: int, *, is_whole: bool) -> None:
        self.tokens = chunk.ids()
        self.num_cells, self.is_whole, self.num_polls = chunk.num_cells, is_whole, num_polls

    def prepare(self, asker: object) -> bool:
        self.num_polls -= 1
        return self.num_polls < 0

    def wait(self, seconds: float) -> None:
        """There is nothing to wait for."""

    def drop(self, asker: object) -> None:
        """It goes on."""


class Pictures:
    """Knows every chunk; of three, one is decoded at once."""

    def __init__(self) -> None:
        self.found: dict[bytes, FakeChunk] = {}

    def find(self, chunk: MediaChunk) -> LoadedChunk:
        kind = chunk.key[0] % 3
        return self.found.setdefault(chunk.key, FakeChunk(chunk, 4 * kind, is_whole=kind == 1))


def with_pictures(
    text: Sequence[int], *images: tuple[int, int]
) -> tuple[list[int], tuple[tuple[int, MediaChunk], ...]]:
    """A text with images in it: (where, number); each has a size of its own."""
    tokens, media = list(text), []
    for at, number in images:
        chunk = MediaChunk(bytes([number]), 5 + 4 * number)
        tokens[at:at] = chunk.ids()
        media.append((at, chunk))
    return tokens, tuple(media)
