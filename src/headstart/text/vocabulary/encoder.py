"""Tokenizes parts of a text, preserving every byte.

A model's own tokenizer expects whole, well-formed texts: SentencePiece puts a space before the
first word, invalid UTF-8 is replaced by U+FFFD (BPE) or affects its neighbours (SentencePiece), and
a token that a GGUF marks as control loses its text. Here the tokens always stand for exactly the
given bytes.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from functools import lru_cache

from headstart.text.vocabulary.table import VocabTable
from headstart.types import Vocab

# absorbs the space that a tokenizer puts before the first word; merges with nothing
_ANCHOR = b"\x02"
_INVALID = re.compile("([\udc80-\udcff]+)")  # what `surrogateescape` makes of invalid bytes
_MAX_SPELLED_BYTES = 32  # longest token tried when spelling


class Encoder:
    """Tokenizes bytes as the vocabulary's own tokenizer would, but exactly."""

    def __init__(self, vocab: Vocab, table: VocabTable) -> None:
        self.table = table
        self._vocab = vocab
        adds_space = table.join(self._tokenize(b"a")) != b"a"
        self._anchor = _ANCHOR if adds_space else b""
        self._num_anchor_tokens = len(self._tokenize(_ANCHOR)) if adds_space else 0
        # Words repeat, and some pre-tokenizers cost 0.1 ms a call.
        self._encode_cached = lru_cache(maxsize=16384)(self._encode)

    def encode(self, text: bytes) -> Sequence[int]:
        """Tokens whose bytes are exactly `text`, without control tokens. Do not modify the result.

        Bytes without any token are left out.
        """
        return self._encode_cached(text) if len(text) <= 64 else self._encode(text)

    def _encode(self, text: bytes) -> list[int]:
        try:
            text.decode()
        except UnicodeDecodeError:
            return self._encode_broken(text)
        return self._encode_valid(text)

    def _encode_broken(self, text: bytes) -> list[int]:
        tokens: list[int] = []
        for index, part in enumerate(_INVALID.split(text.decode("utf-8", "surrogateescape"))):
            raw = part.encode("utf-8", "surrogateescape")
            tokens += spell(self.table, raw) if index % 2 else self._encode_valid(raw)
        return tokens

    def _encode_valid(self, text: bytes) -> list[int]:
        if not text:
            return []
        tokens = self._tokenize(self._anchor + text)[self._num_anchor_tokens :]
        if self.table.join(tokens) == text:
            return tokens
        # some part is not tokenized exactly: narrow it down and spell only that
        if len(text) <= _MAX_SPELLED_BYTES:
            return spell(self.table, text)
        middle = _middle(text)
        return self._encode_valid(text[:middle]) + self._encode_valid(text[middle:])

    def _tokenize(self, text: bytes) -> list[int]:
        return self._vocab.tokenize(text, add_special=False, parse_special=False)


def spell(table: VocabTable, text: bytes) -> list[int]:
    """Tokenize greedily from left to right, longest token first."""
    ids, tokens, start = table.ids, [], 0
    while start < len(text):
        for end in range(min(len(text), start + _MAX_SPELLED_BYTES), start, -1):
            token = ids.get(text[start:end])
            if token is not None:
                tokens.append(token)
                break
        start = end
    return tokens


def _middle(text: bytes) -> int:
    """Where to split valid UTF-8 near the middle: before a space, else between characters."""
    middle = len(text) // 2
    space = text.rfind(b" ", 1, middle + 1)
    if space > 0:
        return space
    while text[middle] & 0xC0 == 0x80:
        middle -= 1
    return middle


def num_incomplete(text: bytes) -> int:
    """Number of bytes (0 to 3) of an incomplete UTF-8 character at the end."""
    end = text[-3:]
    return len(end) - codecs.utf_8_decode(end, "replace", False)[1]
