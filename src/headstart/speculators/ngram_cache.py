"""Counts the tokens that followed 1 to 4 tokens: in this text, past answers, or a corpus.

Three levels, tried in this order with llama.cpp's thresholds: the context (this request), the
dynamic level (a file, and what requests of the public namespace have generated since) and the
static level (a file, never changed; only its bigrams count). Static counts also weigh the tokens of
the other two. The score of a token is c / (s + 1 / n): c of the s tokens that followed its n-gram
of n tokens.

Unlike llama.cpp: the context is reset with each request, single tokens are counted, and the static
file is loaded once. Other namespaces read the public dynamic level but do not add to it. As in
llama-server, no file is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.config import option
from headstart.speculators.base import register
from headstart.speculators.base_texts import MIN_SHARE, TextSpeculator
from headstart.speculators.ngram_cache_counts import (
    MAX_NGRAM,
    CountedHistory,
    NgramCounts,
    pack,
    shorter,
    slide,
)
from headstart.types import Draft, DraftRequest, Vocab

# n-grams, the longest first, with the samples and the percent of them that they need to be used
_LAX = ((4, 1, 50), (3, 1, 50), (2, 2, 50), (1, 2, 66))  # context
_STRICT = ((4, 2, 66), (3, 2, 66), (2, 3, 66), (1, 4, 75))  # dynamic
_STATIC = ((2, 2, 50),)


@register
class NgramCacheSpeculator(TextSpeculator[CountedHistory]):
    """Drafts the token that followed most often, if it is clear enough."""

    name = "ngram-cache"

    @dataclass(frozen=True, slots=True)
    class Options:
        """Files and limits of the counts."""

        lookup_cache_static: str | None = option(
            None, "lookup file made from a text collection; only read", "--lookup-cache-static"
        )
        lookup_cache_dynamic: str | None = option(
            None, "lookup file made from past answers; only read", "--lookup-cache-dynamic"
        )
        max_ngrams: int = option(500_000, "maximum n-grams kept of past answers", least=1)

    def __init__(self, options: Options | None = None, vocab: Vocab | None = None) -> None:
        """`vocab` is needed for files, whose tokens it bounds."""
        super().__init__(options)
        options = self.options
        size = vocab.size if vocab else 0
        self._static, self._dynamic = (
            NgramCounts.load(Path(file), size, limit) if file else NgramCounts(limit)
            for file, limit in (
                (options.lookup_cache_static, None),
                (options.lookup_cache_dynamic, options.max_ngrams),
            )
        )

    def history_of(self, text: Sequence[int], namespace: str) -> CountedHistory:
        return CountedHistory(text, namespace)

    def draft_for(self, history: CountedHistory, request: DraftRequest) -> Draft:
        window = history.tokens[-MAX_NGRAM:]
        key, size = pack(window), len(window)
        tokens: list[int] = []
        scores: list[float] = []
        survival = 1.0
        for _ in range(min(request.max_tokens, 8)):
            weights = (self._static.after(shorter(key, 2)) if size > 1 else None) or {}
            guess = (
                history.counts.clearest(key, size, _LAX, weights)
                or self._dynamic.clearest(key, size, _STRICT, weights)
                or self._static.clearest(key, size, _STATIC, {})
            )
            if guess is None:
                break
            survival *= guess[1]
            if survival < MIN_SHARE:
                break
            tokens.append(guess[0])
            scores.append(guess[1])
            key, size = slide(key, guess[0]), min(size + 1, MAX_NGRAM)
        return Draft(tokens, scores)

    def end(self, seq_id: int) -> None:
        history = self.histories.pop(seq_id, None)
        if history is not None and not history.namespace:
            # not the prompt, which chats repeat every turn
            self._dynamic.learn(history.tokens, history.num_prompt)

    def describe(self) -> dict[str, Any]:
        return {
            "static_ngrams": len(self._static),
            "dynamic_ngrams": len(self._dynamic),
            "dynamic_learns": "requests without an API key only",
        }
