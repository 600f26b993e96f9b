"""From a target's vocabulary to a draft model's and back, for one pair of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headstart.text.vocabulary.comparison import (
    Comparison,
    TranslationMode,
    compare_tables,
    pair_controls,
)
from headstart.text.vocabulary.encoder import Encoder
from headstart.text.vocabulary.replacements import Pair, Replacements
from headstart.text.vocabulary.table import VocabTable, read_table
from headstart.text.vocabulary.text_translator import DraftSnapshot, ToDraft, ToTarget
from headstart.text.vocabulary.trie import ByteTrie
from headstart.types import Vocab

_CHUNK = 1024  # target tokens between two snapshots of a long prompt


@dataclass(frozen=True, slots=True)
class TranslationOptions:
    """How to translate between vocabularies that differ."""

    # markers of the target, markers of the draft; the first match counts
    replacements: tuple[Pair, ...] = ()
    heals: bool = True  # take the last draft token back where the vocabularies do not end alike


class TranslatedSequence(ABC):
    """One sequence of the target, as the draft model sees it."""

    def __init__(self) -> None:
        self.target_tokens: list[int] = []
        self.num_stable = 0
        """Leading tokens of `draft_history` that the last call left as they were."""

    @property
    @abstractmethod
    def draft_history(self) -> list[int]:
        """What the draft model's cache should hold before it drafts. Live: do not keep it."""

    @property
    def pending(self) -> bytes:
        """Bytes of the history that a draft must begin with; see `VocabularyTranslator.allowed`."""
        return b""

    @property
    def healed(self) -> int | None:
        """The draft token that was taken back; likely the draft model's choice again."""
        return None

    @property
    def can_draft(self) -> bool:
        """False while the history ends inside a marker that is to be replaced."""
        return True

    @property
    def num_final(self) -> int:
        """Leading draft tokens that no longer history changes."""
        return len(self.draft_history)

    @abstractmethod
    def extend(self, tokens: Sequence[int]) -> None:
        """The target's history grew by these tokens. O(new tokens)."""

    @abstractmethod
    def translate(self, draft_tokens: Sequence[int]) -> tuple[list[int], int]:
        """Target tokens of a draft that follows `draft_history`, and how many at the end are
        provisional.

        Provisional tokens are right for this draft, but a longer one could change them.
        """

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Keep the first `length` target tokens."""

    def reset(self) -> None:
        """Forget the history."""
        self.truncate(0)


class IdenticalSequence(TranslatedSequence):
    """Ids mean the same on both sides."""

    def __init__(self, target_size: int) -> None:
        super().__init__()
        self._target_size = target_size

    @property
    def draft_history(self) -> list[int]:
        return self.target_tokens

    def extend(self, tokens: Sequence[int]) -> None:
        self.num_stable = len(self.target_tokens)
        self.target_tokens += tokens

    def translate(self, draft_tokens: Sequence[int]) -> tuple[list[int], int]:
        size = self._target_size  # ids beyond it are padding of the draft
        end = next((i for i, token in enumerate(draft_tokens) if token >= size), len(draft_tokens))
        return list(draft_tokens[:end]), 0

    def truncate(self, length: int) -> None:
        del self.target_tokens[length:]
        self.num_stable = len(self.target_tokens)


class SharedSequence(TranslatedSequence):
    """Ids are mapped; a token without a partner is spelled with the other side's tokens."""

    def __init__(self, translator: VocabularyTranslator) -> None:
        super().__init__()
        self._translator = translator
        draft = translator.draft
        self._history = [draft.bos_id] if draft.add_bos and draft.bos_id is not None else []
        self._ends: list[int] = []  # length of the draft history after each target token

    @property
    def draft_history(self) -> list[int]:
        return self._history

    def extend(self, tokens: Sequence[int]) -> None:
        self.num_stable = len(self._history)
        for token in tokens:
            if self.target_tokens or token != self._translator.target.bos_id:
                self._history += self._translator.spell_for_draft(token)
            self.target_tokens.append(token)
            self._ends.append(len(self._history))

    def translate(self, draft_tokens: Sequence[int]) -> tuple[list[int], int]:
        tokens: list[int] = []
        for token in draft_tokens:
            spelled = self._translator.spell_for_target(token)
            if not spelled:
                break
            tokens += spelled
        return tokens, 0

    def truncate(self, length: int) -> None:
        if length < len(self.target_tokens):
            num_kept = self._ends[length - 1] if length > 0 else int(self._translator.draft.add_bos)
            del self.target_tokens[length:], self._ends[length:], self._history[num_kept:]
        self.num_stable = len(self._history)


class TextSequence(TranslatedSequence):
    """Tokens go by their text."""

    def __init__(self, translator: VocabularyTranslator) -> None:
        super().__init__()
        self._to_draft = translator.make_to_draft()
        self._to_target = translator.to_target_translator
        self._target_bos = translator.target.bos_id
        self._snapshots: list[tuple[int, DraftSnapshot]] = []  # by the number of target tokens

    @property
    def draft_history(self) -> list[int]:
        return self._to_draft.tokens

    @property
    def pending(self) -> bytes:
        return self._to_draft.pending

    @property
    def healed(self) -> int | None:
        return self._to_draft.healed

    @property
    def can_draft(self) -> bool:
        return self._to_draft.can_draft

    @property
    def num_final(self) -> int:
        return self._to_draft.num_final

    def extend(self, tokens: Sequence[int]) -> None:
        num_stable = len(self.draft_history)
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            # the draft has its own, or none
            is_bos = not self.target_tokens and chunk[0] == self._target_bos
            self.target_tokens += chunk
            self._to_draft.append(chunk[1:] if is_bos else chunk)
            num_stable = min(num_stable, self._to_draft.num_stable)
            self._snapshots.append((len(self.target_tokens), self._to_draft.snapshot()))
        self.num_stable = num_stable

    def translate(self, draft_tokens: Sequence[int]) -> tuple[list[int], int]:
        if not self.can_draft:
            return [], 0
        return self._to_target.translate(self.target_tokens, self.pending, draft_tokens)

    def truncate(self, length: int) -> None:
        if length >= len(self.target_tokens):
            self.num_stable = len(self.draft_history)
            return
        del self._snapshots[bisect_right(self._snapshots, length, key=lambda entry: entry[0]) :]
        if not self._snapshots:
            num_kept = 0
            self._to_draft.reset()
        else:
            num_kept, snapshot = self._snapshots[-1]
            self._to_draft.restore(snapshot, self.target_tokens[num_kept - 1])
        num_stable, kept = self._to_draft.num_stable, self.target_tokens[num_kept:length]
        del self.target_tokens[num_kept:]
        self.extend(kept)
        self.num_stable = min(num_stable, self.num_stable)


class VocabularyTranslator:
    """Translation between the vocabularies of two models, shared by all sequences."""

    def __init__(
        self, target: Vocab, draft: Vocab, options: TranslationOptions | None = None
    ) -> None:
        """Compare the vocabularies: 0.2 to 0.4 s where one has 262,000 tokens.

        Raises:
            ConfigError: a replacement pair has no left side.
        """
        options = options or TranslationOptions()
        self.target: VocabTable = read_table(target)
        self.draft: VocabTable = read_table(draft)
        self.comparison: Comparison = compare_tables(self.target, self.draft)
        self._heals = options.heals
        self._replacements = Replacements(options.replacements, self.target, self.draft)
        self._target_encoder = Encoder(target, self.target)
        self._draft_encoder = Encoder(draft, self.draft)
        forward = self._replacements.single_tokens
        backward = {new: old for old, new in reversed(forward.items())}
        self._controls = pair_controls(self.target, self.draft, forward)
        self.to_target_translator = ToTarget(
            self._target_encoder,
            self.draft,
            controls=pair_controls(self.draft, self.target, backward),
        )
        is_identical = self.comparison.mode is TranslationMode.IDENTICAL
        trie = ByteTrie(() if is_identical else self.draft.pieces)  # nothing is translated then
        self._allowed = lru_cache(maxsize=128)(trie.allowed)
        self._partners = _partners(self.comparison)

    @property
    def mode(self) -> TranslationMode:
        """How tokens are translated. Replacements need the text, so with them nothing is shared."""
        mode = self.comparison.mode
        return (
            TranslationMode.TEXT if mode is TranslationMode.SHARED and self._replacements else mode
        )

    def why_not(self) -> str | None:
        """Why no draft could be translated; None if drafts can be."""
        if self.mode is not TranslationMode.TEXT:
            return None
        for source, other, name in (
            (self.target, self.draft, "it"),
            (self.draft, self.target, "the target"),
        ):
            used, spelled = characters(source), characters(source) & other.ids.keys()
            if 2 * len(spelled) <= len(used) or not used:
                return (
                    f"{name} has tokens for only {len(spelled)} of the {len(used)} ASCII "
                    "characters in the other's "
                    "vocabulary, so text cannot go from one to the other"
                )
        return None

    def describe(self) -> str:
        """One line for the log and `/props`."""
        pairs = len(self._replacements)
        replaced = f"; by text, with {pairs} marker{'s' * (pairs > 1)} replaced" if pairs else ""
        return self.comparison.describe() + (replaced if self.mode is TranslationMode.TEXT else "")

    @property
    def to_target(self) -> NDArray[np.int32]:
        """Target ids of the draft's tokens, -1 where there is none; for drafting with the request's
        noise.
        """
        return self.comparison.to_target

    @property
    def to_draft(self) -> NDArray[np.int32]:
        """Draft ids of the target's tokens, -1 where there is none."""
        return self.comparison.to_draft

    def open(self) -> TranslatedSequence:
        """Begin a sequence."""
        if self.mode is TranslationMode.IDENTICAL:
            return IdenticalSequence(self.target.size)
        return SharedSequence(self) if self.mode is TranslationMode.SHARED else TextSequence(self)

    def map_logits(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A row of the draft's logits by target ids, -inf where a token has no partner."""
        return np.append(logits, np.float32(-np.inf)).take(self._partners, mode="clip")

    def allowed(self, pending: bytes) -> NDArray[np.int32]:
        """Draft tokens that agree with `pending`: they begin with it or it begins with them. Read
        only.

        The caller takes the bytes of the chosen token off `pending` and asks again until nothing is
        left.
        """
        return self._allowed(pending)

    def make_to_draft(self) -> ToDraft:
        """A translator for one sequence's history."""
        return ToDraft(
            self.target,
            self._draft_encoder,
            controls=self._controls,
            replacements=self._replacements,
            heals=self._heals,
        )

    def spell_for_draft(self, token: int) -> Sequence[int]:
        """Draft tokens of one target token on its own."""
        partner = int(self.comparison.to_draft[token])
        return [partner] if partner >= 0 else self._draft_encoder.encode(self.target.pieces[token])

    def spell_for_target(self, token: int) -> Sequence[int]:
        """Target tokens of one draft token on its own."""
        partner = int(self.comparison.to_target[token])
        return [partner] if partner >= 0 else self._target_encoder.encode(self.draft.pieces[token])


def characters(table: VocabTable) -> set[bytes]:
    """Printable ASCII characters that occur in a vocabulary's text."""
    return {bytes([byte]) for byte in set(b"".join(table.pieces)) if 32 < byte < 127}


def _partners(comparison: Comparison) -> NDArray[np.intp]:
    """Per target token the draft token that means the same, one to one; else one past the last
    draft token.

    Where two tokens of one side have the same bytes only the one that comes back counts.
    """
    ours = np.flatnonzero(comparison.to_target >= 0)
    theirs = comparison.to_target[ours]
    is_mutual = comparison.to_draft[theirs] == ours
    partners = np.full(len(comparison.to_draft), len(comparison.to_target), np.intp)
    partners[theirs[is_mutual]] = ours[is_mutual]
    return partners
