"""Identity of a vocabulary, so that token ids in a file keep their meaning."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from headstart.types import Vocab


@dataclass(frozen=True, slots=True)
class VocabularyId:
    """Identifies the spelling of every token."""

    size: int
    digest: bytes  # 16 bytes over the spellings

    @property
    def mark(self) -> int:
        """31 bits of the digest, for files with room for only a token id."""
        return int.from_bytes(self.digest[:4], "little") >> 1

    @classmethod
    def of(cls, vocab: Vocab) -> VocabularyId:
        """Identify a vocabulary. O(vocab_size)."""
        digest = blake2b(digest_size=16)
        for token in range(vocab.size):
            text = vocab.token_text(token)
            digest.update(b"%d:%b" % (len(text), text))
        return cls(vocab.size, digest.digest())
