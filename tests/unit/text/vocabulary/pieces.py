"""A target of 31 letters and a draft model of other tokens that thinks like it, for drafts across
vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from tests.harness import EOS, Model

from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.testing import FakeEngine
from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator
from headstart.types import CacheKind

LETTERS = [bytes([ord("a") + token]) for token in range(EOS)]
PAIRS = [first + second for first in LETTERS[:5] for second in LETTERS[:9]]
MARKER = b"<end>"


class PieceVocab:
    """Text tokens, then one control token that ends the turn. The longest token first, from left to
    right.
    """

    bos_id: int | None = None
    add_bos = False

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = list(pieces)
        self.size = len(pieces) + 1
        self.eos_id: int | None = len(pieces)
        self.eog_ids = frozenset({len(pieces)})
        self._ids = {piece: token for token, piece in enumerate(pieces)}

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        tokens, longest = [], max(map(len, self.pieces))
        while raw:
            fitting = (raw[:size] for size in range(longest, 0, -1) if raw[:size] in self._ids)
            if not (piece := next(fitting, b"")):
                break  # a byte without a token: the rest is lost, as some tokenizers do
            tokens.append(self._ids[piece])
            raw = raw[len(piece) :]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token] if token < len(self.pieces) else b""

    def token_text(self, token: int) -> bytes:
        return self.token_bytes(token) or MARKER

    def is_control(self, token: int) -> bool:
        return token == self.eos_id


class Translated(FakeEngine):
    """A draft model whose logits are those of a target model for the same bytes.

    Tokens of several letters are never its choice, but histories are full of them.
    """

    def __init__(
        self, vocab: PieceVocab, model: Model, cache_kind: CacheKind = CacheKind.CUT
    ) -> None:
        super().__init__(vocab.size, context_size=512, num_cells=8 * 512, cache_kind=cache_kind)
        self.vocab, self.model = vocab, model
        self.to_letter = np.array(
            [LETTERS.index(p) if p in LETTERS else -1 for p in vocab.pieces] + [EOS]
        )

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        letters: list[int] = []
        for token in tokens:
            letters += (
                [EOS]
                if token == self.vocab.eos_id
                else [b - ord("a") for b in self.vocab.pieces[token]]
            )
        logits = self.model.logits_after(letters)[self.to_letter]
        return np.where(self.to_letter < 0, np.float32(-20.0), logits).astype(np.float32)


VOCABULARIES = ("same", "shared", "text", "pairs")


@cache
def make_translator(kind: str) -> tuple[PieceVocab, VocabularyTranslator]:
    """A draft model's vocabulary. `shared`: the letters in another order. `text`: the same, forced
    to go by text. `pairs`: and pairs of letters.
    """
    pieces = [LETTERS[token] for token in np.random.default_rng(3).permutation(EOS)]
    draft = PieceVocab(pieces + (PAIRS if kind == "pairs" else []))
    replacements = ((MARKER.decode(), MARKER.decode()),) if kind == "text" else ()
    return draft, VocabularyTranslator(PieceVocab(LETTERS), draft, replacements)


def make_drafter(
    vocabulary: str,
    *,
    order: int | None = None,
    skew: float = 0.0,
    cache_kind: CacheKind = CacheKind.CUT,
) -> DraftModelSpeculator:
    """A draft model that thinks like the target, with its vocabulary or another."""
    engine, translator = Model(order, skew=skew, cache_kind=cache_kind), None
    if vocabulary != "same":
        draft, translator = make_translator(vocabulary)
        engine = Translated(draft, engine, cache_kind)
    return DraftModelSpeculator(engine, translator)
