"""A model's vocabulary in the form that llguidance needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from headstart.text.vocabulary.encoder import Encoder
from headstart.text.vocabulary.table import VocabTable, read_table
from headstart.types import Vocab


class GrammarTokens:
    """The tokens of one vocabulary, and how text becomes tokens. Thread-safe.

    Control tokens have no text that a grammar could match; a grammar refers to them by id.
    """

    def __init__(self, table: VocabTable, encode: Callable[[bytes], Sequence[int]]) -> None:
        """`encode` makes tokens that stand for these very bytes."""
        self.table = table
        self.size = table.size
        self.eog_ids = table.eog_ids
        self._encode = encode
        pieces = [
            # llguidance's prefix of special tokens, which text never matches
            b"\xff" + table.controls[token] if token in table.controls else piece
            for token, piece in enumerate(table.pieces)
        ]
        wrapped = TokenizerWrapper(_Tokenizer(pieces, encode, table))
        spellings = [table.spelling(token) for token in range(table.size)]
        self._spelled = np.frombuffer(b"".join(spellings), np.uint8)
        self._owner = np.repeat(np.arange(table.size, dtype=np.int32), list(map(len, spellings)))
        # without an end token, use an id outside the vocabulary
        self.native = LLTokenizer(wrapped, eos_token=sorted(self.eog_ids) or None)

    @classmethod
    def read(cls, vocab: Vocab) -> GrammarTokens:
        """Read a vocabulary: 0.5 to 2 seconds for a large one."""
        table = read_table(vocab)
        return cls(table, Encoder(vocab, table).encode)

    def encode(self, text: bytes) -> list[int]:
        """Tokens that stand for these very bytes."""
        return list(self._encode(text))

    def with_bytes(self, wanted: Iterable[int]) -> list[int]:
        """Tokens whose spelling has one of these bytes."""
        found = np.isin(self._spelled, np.fromiter(wanted, np.uint8))
        return [int(token) for token in np.unique(self._owner[found])]

    def spelling(self, token: int) -> bytes:
        """A token's text, control tokens spelled out."""
        return self.table.spelling(token)


class _Tokenizer:
    """The tokenizer interface of llguidance."""

    def __init__(
        self, pieces: list[bytes], encode: Callable[[bytes], Sequence[int]], table: VocabTable
    ) -> None:
        self.tokens = pieces
        self.eos_token_id = table.eos_id if table.eos_id is not None else min(table.eog_ids)
        self.bos_token_id = table.bos_id
        self.special_token_ids: list[int] = []
        self._encode = encode

    def __call__(self, text: bytes) -> list[int]:
        return list(self._encode(text))
