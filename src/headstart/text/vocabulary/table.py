"""The bytes and attributes of all tokens of a vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headstart.types import Vocab


@dataclass(frozen=True, slots=True, eq=False)
class VocabTable:
    """The tokens of a vocabulary. A token is text, a control token, or (without bytes) neither.

    Two tokens may stand for the same bytes (SentencePiece has `A` and `<0x41>`); `ids` holds the
    one that the tokenizer produces.
    """

    pieces: list[bytes]  # by id; empty for control tokens
    ids: Mapping[bytes, int]  # text tokens by their bytes
    controls: Mapping[int, bytes]  # spelling of control tokens by id
    eog_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    word_ends: bytes  # by (byte << 8 | next byte): 1 where a word ends that no token reaches over

    @property
    def size(self) -> int:
        return len(self.pieces)

    def join(self, tokens: Sequence[int]) -> bytes:
        """The bytes that the tokens stand for."""
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
