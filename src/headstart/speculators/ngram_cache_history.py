"""The history of one request and the counts of its n-grams, kept together."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from headstart.speculators.ngram_cache_counts import NgramCounts
from headstart.structures.prefix import common_prefix_length


class CountedHistory:
    """`tokens`, of which the first `num_prompt` were given, and `counts` over all of them."""

    __slots__ = ("counts", "namespace", "num_prompt", "tokens")

    def __init__(self, prompt: Sequence[int], namespace: str = "") -> None:
        self.namespace = namespace
        self.num_prompt = len(prompt)
        self.tokens = array("i", prompt)
        self.counts = NgramCounts()
        self.counts.learn(self.tokens, 0)

    def extend(self, new: Sequence[int]) -> None:
        start = len(self.tokens)
        self.tokens.extend(new)
        self.counts.learn(self.tokens, start)

    def follow(self, history: Sequence[int]) -> None:
        """Become equal to `history`; cheap when it is, or only longer. See `SuffixIndex.follow`."""
        size = len(self.tokens)
        recent = max(0, size - 8)
        if size <= len(history) and list(history[recent:size]) == self.tokens[recent:].tolist():
            if size < len(history):
                self.extend(history[size:])
            return
        tokens = array("i", history)
        self.num_prompt = min(self.num_prompt, common_prefix_length(self.tokens, tokens))
        self.tokens = tokens
        self.counts = NgramCounts()
        self.counts.learn(self.tokens, 0)
