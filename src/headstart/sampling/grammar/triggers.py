"""Finds where a constraint begins in a text: at or after the first trigger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from llguidance import LLTokenizer, TokenizerWrapper

from headstart.structures.prefix import num_begun
from headstart.text.vocabulary.table import Encoder, VocabTable, read_table
from headstart.types import Vocab
from headstart.types.constraint import ThoughtMarks


class GrammarTokens:
    """The tokens of one vocabulary, and its tokenizer. Thread-safe.

    Grammars cannot match control tokens by text, only by id.
    """

    def __init__(self, table: VocabTable, encode: Callable[[bytes], Sequence[int]]) -> None:
        """`encode` returns tokens that stand for exactly these bytes."""
        self.table = table
        self.size = table.size
        self.eog_ids = table.eog_ids
        self._encode = encode
        pieces = [
            # llguidance's prefix of special tokens, never matched by text
            b"\xff" + table.controls[token] if token in table.controls else piece
            for token, piece in enumerate(table.pieces)
        ]
        wrapped = TokenizerWrapper(_Tokenizer(pieces, encode, table))
        # without an end token, use an id outside the vocabulary
        self.native = LLTokenizer(wrapped, eos_token=sorted(self.eog_ids) or None)

    @classmethod
    def read(cls, vocab: Vocab) -> GrammarTokens:
        """Read a vocabulary: 0.5 to 2 seconds for a large one."""
        table = read_table(vocab)
        return cls(table, Encoder(vocab, table).encode)

    def encode(self, text: bytes) -> list[int]:
        """Tokens that stand for exactly these bytes."""
        return list(self._encode(text))

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


class FreeText(NamedTuple):
    """The state of text that is not constrained yet."""

    tail: bytes = b""  # its end, if that may begin a trigger or a reasoning marker
    is_thinking: bool = False  # inside reasoning, where triggers are ignored


class Triggers:
    """Searches free text for triggers and reasoning markers."""

    def __init__(
        self,
        triggers: tuple[bytes, ...],
        thoughts: ThoughtMarks | None,
        tokens: GrammarTokens,
        *,
        includes_trigger: bool = False,
    ) -> None:
        self._triggers = triggers
        self._thoughts = thoughts
        self._includes_trigger = includes_trigger
        self._tokens = tokens
        self._outside = (*triggers, *([thoughts.start] if thoughts and thoughts.start else ()))

    def begin(self) -> FreeText:
        """The state at the start of an answer."""
        return FreeText(is_thinking=self._thoughts is not None and self._thoughts.is_open)

    def follow(self, text: FreeText, token: int) -> tuple[bytes | None, FreeText]:
        """The first bytes of the constrained text if this token completes a trigger, else None; and
        the state after the token.

        The trigger that is completed first wins; of two that end together, the longer one. The end
        marker of reasoning may be a trigger or the start of one.
        """
        left, is_thinking = text.tail + self._tokens.spelling(token), text.is_thinking
        while True:
            if is_thinking:
                assert self._thoughts is not None
                at = left.find(self._thoughts.end)
                if at < 0:
                    return None, FreeText(_begun(left, (self._thoughts.end,)), True)
                left = left[at:]
            found = min(self._ends(left), default=None)
            thoughts_at = self._begin_of_thoughts(left)
            if thoughts_at is not None and (found is None or thoughts_at < found[0]):
                left, is_thinking = left[thoughts_at:], True
                continue
            if found is None:
                return None, FreeText(_begun(left, self._outside))
            end, length = found
            return left[end + length if self._includes_trigger else end :], FreeText()

    def _ends(self, text: bytes) -> list[tuple[int, int]]:
        """(end, -length) of each trigger in the text: the minimum wins."""
        return [
            (at + len(trigger), -len(trigger))
            for trigger in self._triggers
            if (at := text.find(trigger)) >= 0
        ]

    def _begin_of_thoughts(self, text: bytes) -> int | None:
        """End of the first start marker of reasoning."""
        if self._thoughts is None or not self._thoughts.start:
            return None
        at = text.find(self._thoughts.start)
        return None if at < 0 else at + len(self._thoughts.start)


def _begun(text: bytes, marks: Sequence[bytes]) -> bytes:
    return text[len(text) - num_begun(text, marks) :]
