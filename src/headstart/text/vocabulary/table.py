"""The bytes and attributes of all tokens of a vocabulary.

A model's own tokenizer expects whole, well-formed texts: SentencePiece puts a space before the
first word, invalid UTF-8 is replaced by U+FFFD (BPE) or affects its neighbours (SentencePiece), and
a token that a GGUF marks as control loses its text. Here the tokens always represent exactly the
given bytes.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headstart.types import Vocab


@dataclass(frozen=True, slots=True, eq=False)
class VocabTable:
    """The tokens of a vocabulary. A token is text, a control token, or (without bytes) neither.

    Two tokens may have the same bytes (SentencePiece has `A` and `<0x41>`); `ids` holds the one
    that the tokenizer produces.
    """

    pieces: list[bytes]  # by id; empty for control tokens
    ids: Mapping[bytes, int]  # text tokens by their bytes
    controls: Mapping[int, bytes]  # spelling of control tokens by id
    eog_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    word_ends: bytes  # by (byte << 8 | next byte): 1 if a word ends there and no token crosses

    @property
    def size(self) -> int:
        return len(self.pieces)

    def join(self, tokens: Sequence[int]) -> bytes:
        """The bytes of the tokens."""
        pieces = self.pieces
        return b"".join([pieces[token] for token in tokens])

    def spelling(self, token: int | None) -> bytes:
        """A token's text, also for control tokens; empty for None and ids out of range."""
        if token is None or not 0 <= token < self.size:
            return b""
        return self.controls.get(token) or self.pieces[token]


def read_table(vocab: Vocab) -> VocabTable:
    """Read a whole vocabulary. About 3 microseconds a token, nearly all of it spent in `vocab`."""
    pieces = [vocab.token_bytes(token) for token in range(vocab.size)]
    controls = {
        t: vocab.token_text(t)
        for t, piece in enumerate(pieces)
        if not piece and vocab.is_control(t)
    }
    return VocabTable(
        pieces=pieces,
        ids=_canonical_ids(vocab, pieces),
        controls=controls,
        eog_ids=frozenset(vocab.eog_ids),
        bos_id=vocab.bos_id,
        eos_id=vocab.eos_id,
        add_bos=vocab.add_bos,
        word_ends=_word_ends(pieces),
    )


def _canonical_ids(vocab: Vocab, pieces: list[bytes]) -> dict[bytes, int]:
    ids = {piece: token for token, piece in enumerate(pieces)}
    ids.pop(b"", None)
    if len(ids) == len(pieces):
        return ids
    for piece, count in Counter(pieces).items():
        if count > 1 and piece:
            *_, last = vocab.tokenize(piece, add_special=False, parse_special=False) or [ids[piece]]
            if pieces[last] == piece:
                ids[piece] = last
    return ids


def _word_ends(pieces: list[bytes]) -> bytes:
    """Pairs of an ASCII letter or digit and another ASCII character that no token contains."""
    text = np.frombuffer(b"".join(pieces), np.uint8).astype(np.uint16)
    pairs = text[:-1] << 8 | text[1:]
    ends = np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))
    is_inside = np.ones(len(text) + 1, bool)
    is_inside[ends] = False  # the pair at each token's first byte spans two tokens
    letters = np.array([byte < 128 and chr(byte).isalnum() for byte in range(256)])
    marks = ~letters & (np.arange(256) < 128)
    table = np.outer(letters, marks).ravel()
    table[pairs[is_inside[1 : len(text)]]] = False
    return table.tobytes()


_MAX_SPELLED_BYTES = 32  # longest token tried when spelling


class Encoder:
    """Tokenizes bytes as the vocabulary's own tokenizer would, but exactly."""

    def __init__(self, vocab: Vocab) -> None:
        self.table = read_table(vocab)
        self._vocab = vocab
        adds_space = self.table.join(self._tokenize(b"a")) != b"a"
        # absorbs the space that a tokenizer puts before the first word; merges with nothing
        self._anchor = b"\x02" if adds_space else b""
        self._num_anchor_tokens = len(self._tokenize(self._anchor)) if adds_space else 0
        # Words repeat, and some pre-tokenizers cost 0.1 ms a call.
        self._encode_cached = lru_cache(maxsize=16384)(self._encode)

    def encode(self, text: bytes) -> Sequence[int]:
        """Tokens whose bytes are exactly `text`, without control tokens. Do not modify the result.

        Bytes without any token are left out.
        """
        return self._encode_cached(text) if len(text) <= 64 else self._encode(text)

    def _encode(self, text: bytes) -> list[int]:
        tokens: list[int] = []
        marked = text.decode("utf-8", "surrogateescape")
        for index, part in enumerate(re.split("([\udc80-\udcff]+)", marked)):
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
