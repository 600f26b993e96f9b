"""The target's history in the tokens of a draft model with another vocabulary.

The draft model must not continue after a token that its own tokenizer would have made longer. So
unless both vocabularies end the history with the same token, the last draft token is removed and
its bytes are `pending`: the draft model generates them again (token healing). The target continues
from its own tokens.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headstart.structures.prefix import common_prefix_length
from headstart.text.vocabulary.draft_tokenizer import (
    DraftBuilder,
    DraftTokenizer,
    Preference,
    TranslatingBuilder,
)
from headstart.text.vocabulary.replacements import DRAFT_BASE, TARGET_BASE, symbols_of_tokens
from headstart.text.vocabulary.retokenizer import Retokenizer, Snapshot
from headstart.types import DraftRequest

if TYPE_CHECKING:
    from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator

_CONTROLS = re.compile("([\U00010000-\U0010ffff]+)")
_CHUNK = 1024  # target tokens between two snapshots of a long prompt


class TranslatedSequence(DraftTokenizer, ABC):
    """The draft model has another vocabulary: the target's history in draft tokens.

    target_tokens   the history
    draft_history   what the draft model's cache should hold before it drafts; live, do not keep it
    num_stable      leading tokens of it that the last call did not change
    pending         bytes of the history that a draft must begin with, see `allowed`
    healed          the draft token that was removed
    can_draft       False while the history ends inside a marker to be replaced
    """

    pending = b""
    healed: int | None = None

    def __init__(self, translator: VocabularyTranslator, preference: Preference) -> None:
        super().__init__(preference)
        self.translator = translator
        self.target_tokens: list[int] = []
        self.draft_history: list[int] = []

    @property
    def num_final(self) -> int:
        """Leading draft tokens that can no longer change."""
        return len(self.draft_history)

    @abstractmethod
    def extend(self, tokens: Sequence[int]) -> None:
        """The target's history grew by these tokens. O(new tokens)."""

    @abstractmethod
    def translate(self, draft_tokens: Sequence[int]) -> list[int]:
        """Target tokens of a draft that follows `draft_history`."""

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Keep the first `length` target tokens."""

    def to_draft_tokens(self, tokens: Sequence[int], known: int) -> Sequence[int]:
        had, num_stable = self.target_tokens, len(self.draft_history)
        shared = common_prefix_length(had, tokens, min(known, len(had), len(tokens)))
        if shared < len(had):
            self.truncate(shared)
            num_stable = min(num_stable, self.num_stable)
        if shared < len(tokens):
            self.extend(tokens[shared:])
            num_stable = min(num_stable, self.num_stable)
        self.num_stable = num_stable
        return self.draft_history

    def to_target_tokens(self, read: Sequence[int]) -> Sequence[int]:
        return self.target_tokens

    def num_settled(self, history: Sequence[int], num_open: int) -> int:
        """Estimates at most four draft tokens for each open one."""
        return max(0, min(self.num_final, len(history) - 4 * num_open))

    def begin(self, request: DraftRequest, limit: int) -> DraftBuilder:
        return TranslatingBuilder(request, limit, self)

    def num_draft_tokens(self, num_target_tokens: int) -> int:
        """By the ratio so far, plus one because the last is provisional, plus the healed one."""
        ratio = len(self.draft_history) / max(1, len(self.target_tokens))
        expected = math.ceil(num_target_tokens * max(0.5, min(4.0, ratio)))
        return expected + 1 + (self.healed is not None)


class SharedSequence(TranslatedSequence):
    """Ids are mapped; a token without a partner is spelled with the other side's tokens."""

    def __init__(self, translator: VocabularyTranslator, preference: Preference) -> None:
        super().__init__(translator, preference)
        draft = translator.draft
        if draft.add_bos and draft.bos_id is not None:
            self.draft_history.append(draft.bos_id)
        self._num_bos = len(self.draft_history)
        self._ends: list[int] = []  # length of the draft history after each target token

    def extend(self, tokens: Sequence[int]) -> None:
        self.num_stable = len(self.draft_history)
        for token in tokens:
            if self.target_tokens or token != self.translator.target.bos_id:
                self.draft_history += self.translator.spell_for_draft(token)
            self.target_tokens.append(token)
            self._ends.append(len(self.draft_history))

    def translate(self, draft_tokens: Sequence[int]) -> list[int]:
        tokens: list[int] = []
        for token in draft_tokens:
            spelled = self.translator.spell_for_target(token)
            if not spelled:
                break
            tokens += spelled
        return tokens

    def truncate(self, length: int) -> None:
        if length < len(self.target_tokens):
            num_kept = self._ends[length - 1] if length > 0 else self._num_bos
            del self.target_tokens[length:], self._ends[length:], self.draft_history[num_kept:]
        self.num_stable = len(self.draft_history)


class TextSequence(TranslatedSequence):
    """Tokens are translated by their text."""

    def __init__(self, translator: VocabularyTranslator, preference: Preference) -> None:
        super().__init__(translator, preference)
        self._target = translator.target
        # (number of target tokens, draft tokens, pending symbols) after each chunk
        self._snapshots: list[tuple[int, Snapshot, str]] = []
        self._restart()

    @property
    def num_final(self) -> int:
        return min(self._stream.num_final, len(self.draft_history))

    def extend(self, tokens: Sequence[int]) -> None:
        num_stable = len(self.draft_history)
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            # the draft model has its own bos token or none
            is_bos = not self.target_tokens and chunk[0] == self._target.bos_id
            self.target_tokens += chunk
            if appended := chunk[1:] if is_bos else chunk:
                self._begin_change()
                self._append(appended)
                num_stable = min(num_stable, self._end_change(appended[-1]))
            self._snapshots.append((len(self.target_tokens), self._stream.snapshot(), self._held))
        self.num_stable = num_stable

    def translate(self, draft_tokens: Sequence[int]) -> list[int]:
        if not self.can_draft:
            return []
        return self.translator.continue_target(self.target_tokens, self.pending, draft_tokens)

    def truncate(self, length: int) -> None:
        num_stable = len(self.draft_history)
        if length < len(self.target_tokens):
            del self._snapshots[bisect_right(self._snapshots, length, key=lambda one: one[0]) :]
            num_kept = 0
            if not self._snapshots:
                self._restart()
                num_stable = 0
            else:
                num_kept, snapshot, held = self._snapshots[-1]
                self._begin_change()
                self._stream.restore(snapshot)
                self._held = held
                num_stable = min(num_stable, self._end_change(self.target_tokens[num_kept - 1]))
            kept = self.target_tokens[num_kept:length]
            del self.target_tokens[num_kept:]
            self.extend(kept)
            num_stable = min(num_stable, self.num_stable)
        self.num_stable = num_stable

    def _restart(self) -> None:
        draft = self.translator.draft
        self._stream = Retokenizer(self.translator.draft_encoder)
        if draft.add_bos and draft.bos_id is not None:
            self._stream.append_controls([draft.bos_id])
        self.draft_history = self._stream.tokens
        self._held = ""
        self.healed, self.pending, self.can_draft = None, b"", True

    def _begin_change(self) -> None:
        """Put the healed token back into the stream."""
        if self.healed is not None:
            self.draft_history.append(self.healed)
            self.healed = None
        self._stream.num_stable = len(self.draft_history)

    def _append(self, tokens: Sequence[int]) -> None:
        replacements = self.translator.replacements
        if not replacements and self._target.controls.keys().isdisjoint(tokens):
            self._stream.append(self._target.join(tokens))
            return
        symbols = self._held + symbols_of_tokens(tokens, self._target, TARGET_BASE)
        ready, self._held = replacements.apply(symbols)
        for index, part in enumerate(_CONTROLS.split(ready)):
            if index % 2:
                markers = map(self._marker, part)
                self._stream.append_controls([one for one in markers if one is not None])
            elif part:
                self._stream.append(part.encode("latin-1"))

    def _marker(self, symbol: str) -> int | None:
        code = ord(symbol)
        if code >= DRAFT_BASE:
            return code - DRAFT_BASE
        return self.translator.controls.get(code - TARGET_BASE)

    def _end_change(self, last_token: int) -> int:
        """Heal after the last target token; returns the number of unchanged draft tokens."""
        self.can_draft = not (self._held and _CONTROLS.search(self._held))
        unread = self._stream.partial + (self._held.encode("latin-1") if self.can_draft else b"")
        self.pending = unread
        if self.draft_history and last_token not in self._target.controls:
            last_piece = self.translator.draft.pieces[self.draft_history[-1]]
            if last_piece and (unread or last_piece != self._target.pieces[last_token]):
                self.healed = self.draft_history.pop()
                self.pending = last_piece + unread
        return min(self._stream.num_stable, len(self.draft_history))
