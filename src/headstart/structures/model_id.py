"""Which model file something was learned or computed with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelId:
    """A model file: the digest decides, the name is for people."""

    digest: str
    name: str = field(compare=False)

    @classmethod
    def of(cls, path: Path) -> ModelId:
        """From the size and some pieces of the file, wherever it lies: reading all of it would take
        long.

        Raises:
            OSError: it cannot be read.
        """
        size = path.stat().st_size
        digest, num_pieces, piece_bytes = hashlib.sha256(str(size).encode()), 64, 4096
        with path.open("rb") as file:
            for piece in range(num_pieces):
                file.seek(max(0, size - piece_bytes) * piece // (num_pieces - 1))
                digest.update(file.read(piece_bytes))
        return cls(digest.hexdigest()[:16], path.name)

    def __str__(self) -> str:
        return f"{self.name} ({self.digest[:8]})"
