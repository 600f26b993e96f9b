"""What must agree so that token ids in a file mean what they meant when it was written."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from headstart.types import Vocab


@dataclass(frozen=True, slots=True)
class VocabularyId:
    """Stands for the spelling of every token."""

    size: int
    digest: bytes  # 16 bytes over the spellings

    @property
    def mark(self) -> int:
        """31 bits of the digest, for files that have room for a token id only."""
        return int.from_bytes(self.digest[:4], "little") >> 1

    @classmethod
    def of(cls, vocab: Vocab) -> VocabularyId:
        """Identify a vocabulary. O(vocab_size)."""
        digest = blake2b(digest_size=16)
        for token in range(vocab.size):
            text = vocab.token_text(token)
            digest.update(b"%d:%b" % (len(text), text))
        return cls(vocab.size, digest.digest())
