"""Identifies the model file that something was learned or computed with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelId:
    """Identity of a model file: only the digest is compared, the name is for display."""

    digest: str
    name: str = field(compare=False)

    @classmethod
    def of(cls, path: Path) -> ModelId:
        """Hash the size and some pieces of the file: reading all of it would take long.

        Raises:
            OSError: the file cannot be read.
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
