"""The tokens of a vocabulary for llguidance, and the search for where a constraint begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from llguidance import LLTokenizer, TokenizerWrapper

from headstart.structures.prefix import num_begun
from headstart.text.vocabulary.table import Encoder, VocabTable
from headstart.types import Vocab
from headstart.types.constraint import ThoughtMarks

# a token behind the last one of the vocabulary, so never sampled: grammars read it for the
# reasoning that precedes the constrained text
THOUGHTS = "<headstart-thoughts>"


class GrammarTokens:
    """The tokens of one vocabulary, and its tokenizer, as llguidance asks for it. Thread-safe.

    Grammars cannot match control tokens by text, only by id.
    """

    def __init__(self, table: VocabTable, encode: Callable[[bytes], Sequence[int]]) -> None:
        """`encode` returns tokens that stand for exactly these bytes."""
        self.table = table
        self.size = self.thoughts_id = table.size
        self.eog_ids = table.eog_ids
        self._encode = encode
        controls = {**table.controls, self.thoughts_id: THOUGHTS.encode()}
        self.tokens = [
            # llguidance's prefix of special tokens, never matched by text
            b"\xff" + controls[token] if token in controls else piece
            for token, piece in enumerate([*table.pieces, b""])
        ]
        self.bos_token_id = table.bos_id
        # without an end token, use an id outside the vocabulary
        self.eos_token_id = self.size if table.eos_id is None else table.eos_id
        self.native = LLTokenizer(TokenizerWrapper(self), eos_token=sorted(self.eog_ids) or None)

    @classmethod
    def read(cls, vocab: Vocab) -> GrammarTokens:
        """Read a vocabulary: 0.5 to 2 seconds for a large one."""
        encoder = Encoder(vocab)
        return cls(encoder.table, encoder.encode)

    def __call__(self, text: bytes) -> list[int]:
        """Tokens that stand for exactly these bytes."""
        return list(self._encode(text))


class FreeText(NamedTuple):
    """Text that is not constrained yet, searched for triggers and reasoning markers."""

    triggers: tuple[bytes, ...]
    includes_trigger: bool = False  # the constrained text begins with it
    thoughts: ThoughtMarks | None = None  # inside reasoning, triggers are ignored
    is_thinking: bool = False
    tail: bytes = b""  # the end of the text, if that may begin a trigger or a marker

    def follow(self, text: bytes) -> tuple[bytes | None, FreeText]:
        """The first bytes of the constrained text if this text completes a trigger, else None; and
        the state after it.

        The trigger that is completed first wins; of two that end together, the longer one. The end
        marker of reasoning may be a trigger or the start of one.
        """
        left, is_thinking = self.tail + text, self.is_thinking
        start = self.thoughts.start if self.thoughts else b""
        while True:
            if is_thinking:
                assert self.thoughts is not None
                at = left.find(self.thoughts.end)
                if at < 0:
                    return None, self._begun(left, (self.thoughts.end,), is_thinking=True)
                left = left[at:]
            ends = ((left.find(one) + len(one), -len(one)) for one in self.triggers if one in left)
            found = min(ends, default=None)
            thoughts_at = left.find(start) + len(start) if start and start in left else None
            if thoughts_at is not None and (found is None or thoughts_at < found[0]):
                left, is_thinking = left[thoughts_at:], True
                continue
            if found is None:
                return None, self._begun(left, (*self.triggers, start), is_thinking=False)
            end, length = found
            return left[end + length if self.includes_trigger else end :], self

    def _begun(self, text: bytes, marks: Sequence[bytes], *, is_thinking: bool) -> FreeText:
        tail = text[len(text) - num_begun(text, marks) :]
        return self._replace(tail=tail, is_thinking=is_thinking)
