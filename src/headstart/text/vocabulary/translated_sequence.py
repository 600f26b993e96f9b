"""The target's history in the tokens of a draft model with another vocabulary.

The draft model must not continue after a token that its own tokenizer would have made longer. So
unless both vocabularies end the history with the same token, the last draft token is removed and
its bytes are `pending`: the draft model generates them again (token healing). The target continues
from its own tokens.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain, takewhile
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


class TranslatedSequence(DraftTokenizer):
    """The draft model has another vocabulary: the target's history in draft tokens.

    target_tokens   the history
    draft_history   what the draft model's cache should hold before it drafts; live, do not keep it
    num_stable      leading tokens of it that the last `to_draft_tokens` did not change
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
        self._target = translator.target
        # ids are mapped, and tokens without a partner spelled one by one
        self._is_mapped = translator.mode == "shared"
        # (number of target tokens, draft tokens, pending symbols) after each chunk
        self._snapshots: list[tuple[int, Snapshot, str]] = []
        self._restart()

    @property
    def num_final(self) -> int:
        """Leading draft tokens that can no longer change."""
        return min(self._stream.num_final, len(self.draft_history))

    def to_draft_tokens(self, tokens: Sequence[int], known: int) -> Sequence[int]:
        had, self.num_stable = self.target_tokens, len(self.draft_history)
        shared = common_prefix_length(had, tokens, min(known, len(had), len(tokens)))
        if shared < len(had):
            self.truncate(shared)
        if shared < len(tokens):
            self.extend(tokens[shared:])
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

    def extend(self, tokens: Sequence[int]) -> None:
        """The target's history grew by these tokens. O(new tokens)."""
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            # the draft model has its own bos token or none
            is_bos = not self.target_tokens and chunk[0] == self._target.bos_id
            self.target_tokens += chunk
            if appended := chunk[1:] if is_bos else chunk:
                self._begin_change()
                self._append(appended)
                self._end_change()
            self._snapshots.append((len(self.target_tokens), self._stream.snapshot(), self._held))

    def translate(self, draft_tokens: Sequence[int]) -> list[int]:
        """Target tokens of a draft that follows `draft_history`."""
        if self._is_mapped:
            spelled = map(self.translator.spell_for_target, draft_tokens)
            return list(chain.from_iterable(takewhile(bool, spelled)))
        if not self.can_draft:
            return []
        return self.translator.continue_target(self.target_tokens, self.pending, draft_tokens)

    def truncate(self, length: int) -> None:
        """Keep the first `length` target tokens."""
        del self._snapshots[bisect_right(self._snapshots, length, key=lambda one: one[0]) :]
        num_kept = self._snapshots[-1][0] if self._snapshots else 0
        kept = self.target_tokens[num_kept:length]
        del self.target_tokens[num_kept:]
        if not self._snapshots:
            self._restart()
        else:
            self._begin_change()
            _, snapshot, self._held = self._snapshots[-1]
            self._stream.restore(snapshot)
            self._end_change()
        self.extend(kept)

    def _restart(self) -> None:
        draft, self._stream = self.translator.draft, Retokenizer(self.translator.draft_encoder)
        if draft.add_bos and draft.bos_id is not None:
            self._stream.append_tokens([draft.bos_id])
        self.draft_history = self._stream.tokens
        self._held = ""
        self.healed, self.pending, self.can_draft, self.num_stable = None, b"", True, 0

    def _begin_change(self) -> None:
        """Put the healed token back into the stream."""
        if self.healed is not None:
            self.draft_history.append(self.healed)
            self.healed = None
        self._stream.num_stable = len(self.draft_history)

    def _append(self, tokens: Sequence[int]) -> None:
        replacements = self.translator.replacements
        if self._is_mapped:
            spelled = map(self.translator.spell_for_draft, tokens)
            self._stream.append_tokens(list(chain.from_iterable(spelled)))
            return
        if not replacements and self._target.controls.keys().isdisjoint(tokens):
            self._stream.append(self._target.join(tokens))
            return
        symbols = self._held + symbols_of_tokens(tokens, self._target, TARGET_BASE)
        ready, self._held = replacements.apply(symbols)
        for index, part in enumerate(_CONTROLS.split(ready)):
            if index % 2:
                markers = map(self._marker, part)
                self._stream.append_tokens([one for one in markers if one is not None])
            elif part:
                self._stream.append(part.encode("latin-1"))

    def _marker(self, symbol: str) -> int | None:
        code = ord(symbol)
        if code >= DRAFT_BASE:
            return code - DRAFT_BASE
        return self.translator.controls.get(code - TARGET_BASE)

    def _end_change(self) -> None:
        """Heal after the last target token."""
        last_token = self.target_tokens[-1]
        self.can_draft = not (self._held and _CONTROLS.search(self._held))
        unread = self._stream.partial + (self._held.encode("latin-1") if self.can_draft else b"")
        self.pending = unread
        is_text = last_token not in self._target.controls
        if self.draft_history and is_text and not self._is_mapped:
            last_piece = self.translator.draft.pieces[self.draft_history[-1]]
            if last_piece and (unread or last_piece != self._target.pieces[last_token]):
                self.healed = self.draft_history.pop()
                self.pending = last_piece + unread
        self.num_stable = min(self.num_stable, self._stream.num_stable, len(self.draft_history))
