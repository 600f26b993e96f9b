"""Drafts what most often followed the last tokens: options, and scores that are probabilities."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from headstart.config import option
from headstart.speculators import TextSpeculator, register
from headstart.types import Draft, DraftRequest


class Followers:
    """What followed each n tokens of one text, and how often."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.newest: tuple[int, ...] = ()
        self.counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def extend(self, new: Sequence[int]) -> None:
        """Read more of the text."""
        for token in new:
            self.counts[self.newest][token] += 1
            self.newest = (*self.newest, token)[-self.size :]


@register
class FrequentSpeculator(TextSpeculator[Followers]):
    """Counts what followed, and drafts what did so most often."""

    name = "frequent"

    @dataclass(frozen=True, slots=True)
    class Options:
        """Both in tokens; they become --spec-frequent-size and --spec-frequent-n-max."""

        size: int = option(2, "last tokens that are looked up", least=1)
        n_max: int = option(16, "longest draft, in tokens", least=1, limits_draft=True)

    def history_of(self, text: Sequence[int], namespace: str) -> Followers:
        """Count the prompt."""
        history = Followers(self.options.size)
        history.extend(text)
        return history

    def draft_for(self, history: Followers, request: DraftRequest) -> Draft:
        """Follow the highest counts."""
        last, tokens, scores = history.newest, list[int](), list[float]()
        while len(tokens) < min(request.max_tokens, self.options.n_max):
            counts = history.counts.get(last)
            if not counts:
                break
            token, count = counts.most_common(1)[0]
            tokens.append(token)
            scores.append(count / (counts.total() + 1))  # that this token comes next
            last = (*last, token)[-self.options.size :]
        return Draft(tokens, scores)
