"""Translation by text: target tokens into draft tokens as they come, drafts back into target
tokens.

At the boundary both sides matter. The draft model must not start behind a token that its own
tokenizer would have made longer, so unless both vocabularies end with the same token there, the
last draft token is taken back and its bytes are `pending`: the draft model chooses them again
(token healing). The target goes on from the tokens it has, however it came to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headstart.text.vocabulary.encoder import Encoder, num_incomplete
from headstart.text.vocabulary.replacements import (
    DRAFT_BASE,
    TARGET_BASE,
    Replacements,
    symbols_of_tokens,
)
from headstart.text.vocabulary.retokenizer import LOOKBEHIND, Retokenizer, Snapshot, last_split
from headstart.text.vocabulary.table import VocabTable

_CONTROLS = re.compile("([\U00010000-\U0010ffff]+)")


@dataclass(frozen=True, slots=True)
class DraftSnapshot:
    """A state that `ToDraft.restore` returns to."""

    stream: Snapshot
    held: str


class ToDraft:
    """Draft tokens of a growing target history."""

    __slots__ = (
        "_bos", "_controls", "_encoder", "_heals", "_held", "_replacements", "_stream", "_target",
        "can_draft", "healed", "num_stable", "pending",
    )  # fmt: skip

    def __init__(
        self,
        target: VocabTable,
        draft: Encoder,
        *,
        controls: Mapping[int, int],
        replacements: Replacements,
        heals: bool = True,
    ) -> None:
        self._target = target
        self._encoder = draft
        self._controls = controls
        self._replacements = replacements
        self._heals = heals
        self._bos = draft.table.bos_id if draft.table.add_bos else None
        self.num_stable = 0
        self.reset()

    @property
    def tokens(self) -> list[int]:
        """What the draft model should have in its cache. Live: read, do not keep."""
        return self._stream.tokens

    @property
    def num_final(self) -> int:
        """Leading tokens that no longer history changes."""
        return min(self._stream.num_final, len(self.tokens))

    def reset(self) -> None:
        """Forget the history."""
        self._stream = Retokenizer(self._encoder)
        if self._bos is not None:
            self._stream.append_controls([self._bos])
        self._held = ""
        self.num_stable = 0
        self.healed: int | None = None  # the token taken back
        self.pending = b""  # bytes of the history that `tokens` does not cover
        self.can_draft = True  # False: a marker came in part, the rest must come first

    def append(self, tokens: Sequence[int]) -> None:
        """The target's history grew. O(new tokens); `num_stable` draft tokens stayed."""
        if not tokens:
            self.num_stable = len(self.tokens)
            return
        before = len(self.tokens)
        self._take_healed_back()
        self._stream.num_stable = len(self.tokens)
        if self._replacements or not self._target.controls.keys().isdisjoint(tokens):
            self._feed(self._held + symbols_of_tokens(tokens, self._target, TARGET_BASE))
        else:
            self._stream.append(self._target.join(tokens))
        self._heal(tokens[-1])
        self.num_stable = min(before, self._stream.num_stable, len(self.tokens))

    def snapshot(self) -> DraftSnapshot:
        return DraftSnapshot(self._stream.snapshot(), self._held)

    def restore(self, snapshot: DraftSnapshot, last_token: int) -> None:
        """Go back to a state of this history; `last_token` is the target token it ended with."""
        before = len(self.tokens)
        self._take_healed_back()
        self._stream.num_stable = len(self.tokens)
        self._stream.restore(snapshot.stream)
        self._held = snapshot.held
        self._heal(last_token)
        self.num_stable = min(before, self._stream.num_stable, len(self.tokens))

    def _feed(self, symbols: str) -> None:
        ready, self._held = self._replacements.apply(symbols)
        for index, part in enumerate(_CONTROLS.split(ready)):
            if index % 2:
                self._stream.append_controls(
                    [token for token in map(self._marker, part) if token is not None]
                )
            elif part:
                self._stream.append(part.encode("latin-1"))

    def _marker(self, symbol: str) -> int | None:
        code = ord(symbol)
        return code - DRAFT_BASE if code >= DRAFT_BASE else self._controls.get(code - TARGET_BASE)

    def _take_healed_back(self) -> None:
        if self.healed is not None:
            self.tokens.append(self.healed)
            self.healed = None

    def _heal(self, last_token: int) -> None:
        self.can_draft = not (self._held and _CONTROLS.search(self._held))
        unread = self._stream.partial + (self._held.encode("latin-1") if self.can_draft else b"")
        self.pending = unread
        if not self._heals or not self.tokens or last_token in self._target.controls:
            return
        last_piece = self._encoder.table.pieces[self.tokens[-1]]
        if last_piece and (unread or last_piece != self._target.pieces[last_token]):
            self.healed = self.tokens.pop()
            self.pending = last_piece + unread


class ToTarget:
    """Target tokens of a draft that continues the target's history."""

    __slots__ = ("_controls", "_draft", "_encoder", "_target")

    def __init__(self, target: Encoder, draft: VocabTable, *, controls: Mapping[int, int]) -> None:
        self._encoder = target
        self._target = target.table
        self._draft = draft
        self._controls = controls

    def translate(
        self, history: Sequence[int], pending: bytes, draft_tokens: Sequence[int]
    ) -> tuple[list[int], int]:
        """Translate draft tokens that begin with the `pending` bytes of the target's history.

        Returns the tokens, canonical for the target's own tokenizer as far as its history allows,
        and how many of them at the end later bytes could change. An incomplete character at the end
        is left out; the draft ends before a marker that the target does not have and behind an end
        of generation. Empty if the draft contradicts `pending` or does not reach beyond it.
        """
        end = next(
            (i for i, token in enumerate(draft_tokens) if token in self._draft.controls),
            len(draft_tokens),
        )
        data = self._draft.join(draft_tokens[:end])
        if not data.startswith(pending):
            return [], 0
        tokens, num_provisional = self._continue(
            history_tail(history, self._target), data[len(pending) :]
        )
        marker = self._controls.get(draft_tokens[end]) if end < len(draft_tokens) else None
        if marker is None:
            return tokens, num_provisional
        if marker in self._target.eog_ids:
            return [*tokens, marker], 0
        rest, num_provisional = self.translate([], b"", draft_tokens[end + 1 :])
        return [*tokens, marker, *rest], num_provisional

    def _continue(self, tail: list[int], data: bytes) -> tuple[list[int], int]:
        before = self._target.join(tail)
        text = before + data
        text = text[: len(text) - num_incomplete(text)]
        if len(text) <= len(before):
            return [], 0
        whole = self._encoder.encode(text)
        follows = list(whole[: len(tail)]) == tail
        # Else the history ends inside what would be one token: the target goes on from there.
        tokens = (
            list(whole[len(tail) :]) if follows else list(self._encoder.encode(text[len(before) :]))
        )
        return tokens, self._num_behind(
            tokens, len(text), last_split(text, len(text), self._target.word_ends)
        )

    def _num_behind(self, tokens: list[int], end: int, split: int) -> int:
        """How many of the tokens, the last of which ends at `end`, end behind `split`."""
        for count, token in enumerate(reversed(tokens)):
            if end <= split:
                return count
            end -= len(self._target.pieces[token])
        return len(tokens)


def history_tail(history: Sequence[int], table: VocabTable) -> list[int]:
    """The last tokens that bytes to come can merge with: from the last word, `LOOKBEHIND` bytes at
    most.
    """
    pieces, word_ends = table.pieces, table.word_ends
    start, num_bytes = len(history), 0
    while start > 0 and num_bytes < LOOKBEHIND and (piece := pieces[history[start - 1]]):
        start -= 1
        num_bytes += len(piece)
        before = pieces[history[start - 1]] if start > 0 else b""
        if before and word_ends[before[-1] << 8 | piece[0]]:
            break
    return list(history[start:])
