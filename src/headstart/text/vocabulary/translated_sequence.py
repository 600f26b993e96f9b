"""The target's history, and a draft, in the tokens of a draft model with another vocabulary.

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
from itertools import accumulate, chain, takewhile

import numpy as np
from numpy.typing import NDArray

from headstart.structures.prefix import common_prefix_length
from headstart.text.vocabulary.draft_tokenizer import (
    DraftBuilder,
    DraftTokenizer,
    Preference,
    best_of,
)
from headstart.text.vocabulary.replacements import DRAFT_BASE, TARGET_BASE, symbols_of_tokens
from headstart.text.vocabulary.retokenizer import Retokenizer, Snapshot
from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator
from headstart.types import DraftRequest, TokenChoice

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


class TranslatingBuilder(DraftBuilder):
    """Picks draft-model tokens and translates them at the end.

    Tokens are coupled if the draft so far ends with a whole target token and the next one exists in
    both vocabularies: then its position, and so the target's noise, is known. Otherwise the most
    likely token is picked.
    """

    def __init__(self, request: DraftRequest, limit: int, sequence: TranslatedSequence) -> None:
        super().__init__(request, limit, sequence.preference)
        self._translator, self._sequence = sequence.translator, sequence
        # bytes of the history that the draft must repeat
        self._pending = self._sequence.pending
        self._num_healed = len(self._pending)
        self._num_before: list[int] = []  # target tokens before each choice

    def _pick(self, logits: NDArray[np.float32]) -> tuple[int | None, float]:
        if self._pending:
            return self._healing(self._pending, logits)
        choice = self._shared_choice(logits)
        if choice is None or not self._couples:
            return best_of(logits)
        return int(self._translator.to_draft[choice.coupled]), choice.coupled_probability

    def _note(self, token: int) -> None:
        draft = self._translator.draft
        self._pending = self._pending[len(draft.pieces[token]) :]
        if token in draft.eog_ids:
            self.limit = len(self.tokens)

    def _healing(self, pending: bytes, logits: NDArray[np.float32]) -> tuple[int | None, float]:
        """The best token among those that agree with the pending bytes."""
        allowed = self._translator.allowed(pending)
        if not len(allowed):
            return None, 0.0
        index, probability = best_of(logits[allowed])
        return int(allowed[index]), probability

    def _shared_choice(self, logits: NDArray[np.float32]) -> TokenChoice | None:
        """The request's choice from this row, among the shared tokens."""
        translator, choose = self._translator, self.request.choose
        if choose is None or translator.to_target[int(logits.argmax())] < 0:
            return None
        before = self._sequence.translate(self.tokens)
        if len(translator.target.join(before)) + self._num_healed != len(
            translator.draft.join(self.tokens)
        ):
            # inside a character: the next token may merge with those before
            return None
        choice = choose(translator.map_logits(logits), len(self.request.tokens) + len(before))
        self._choices.append(choice)
        self._num_before.append(len(before))
        return choice

    def finish(self) -> tuple[list[int], list[float]]:
        # Provisional tokens are kept: most are right (acceptance length 3.79 instead of 3.14).
        tokens = self._sequence.translate(self.tokens)[: self.request.max_tokens]
        drafted = [len(self._translator.draft.pieces[t]) for t in self.tokens]
        spelled = [len(self._translator.target.pieces[t]) for t in tokens]
        return tokens, spread(self.confidence, drafted, spelled, self._num_healed)

    def num_right(self, emitted: Sequence[int]) -> int:
        return len(emitted)

    def learn(self, emitted: Sequence[int]) -> None:
        """Compare both choices of every row with a correct history."""
        num_right = common_prefix_length(self.finish()[0], emitted) if self._choices else 0
        for num_before, choice in zip(self._num_before, self._choices, strict=True):
            if num_before <= num_right and num_before < len(emitted):
                self._preference.compare(choice, emitted[num_before])


def spread(
    probabilities: Sequence[float], drafted: Sequence[int], spelled: Sequence[int], skip: int = 0
) -> list[float]:
    """Probabilities of target tokens from those of draft tokens that spell the same bytes.

    A target token gets the product of the draft tokens that begin inside it; the first `skip` bytes
    of the draft belong to the history. Control tokens count as one byte.

    >>> spread([0.5, 0.5, 0.9], [2, 2, 3], [4, 3])
    [0.25, 0.9]
    """
    begins = [max(0, b - skip) for b in accumulate((max(1, n) for n in drafted), initial=0)][:-1]
    ends = list(accumulate(max(1, n) for n in spelled))
    result, at = [], 0
    for end in ends:
        likely = 1.0
        while at < len(begins) and begins[at] < end:
            likely *= probabilities[at]
            at += 1
        result.append(likely)
    return result
