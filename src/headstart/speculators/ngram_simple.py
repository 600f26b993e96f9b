"""Prompt lookup: repeats what followed the last n tokens the previous time.

The newest earlier place is used, found by a hash index rather than a scan. A loop shorter than the
draft is repeated. Scores: L / (L + 1), (L + 1) / (L + 2) ..., where L >= size_n is how many tokens
before the place agree.

Source: Saxena, "Prompt Lookup Decoding" (2023), https://github.com/apoorvumang/prompt-lookup-decoding;
the options are those of llama.cpp's ngram-simple.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.config import option
from headstart.speculators.base import register
from headstart.speculators.base_texts import TextSpeculator, agreeing_scores
from headstart.structures.suffix_index import SuffixIndex
from headstart.types import NO_DRAFT, Draft, DraftRequest


@register
class NgramSimpleSpeculator(TextSpeculator[SuffixIndex]):
    """Copies from the sequence's own history."""

    name = "ngram-simple"

    @dataclass(frozen=True, slots=True)
    class Options:
        """Lengths in tokens."""

        size_n: int = option(12, "last tokens that must have occurred before", least=1)
        size_m: int = option(48, "longest draft, in tokens", least=1, limits_draft=True)

    def history_of(self, text: Sequence[int], namespace: str) -> SuffixIndex:
        return SuffixIndex((self.options.size_n,), text=text)

    def draft_for(self, history: SuffixIndex, request: DraftRequest) -> Draft:
        places = history.find(history.tokens, limit=1)
        if not places:
            return NO_DRAFT
        length, position = places[0]
        tokens = history.copy(position, min(request.max_tokens, self.options.size_m))
        return Draft(tokens, agreeing_scores(length, 1, len(tokens)))
