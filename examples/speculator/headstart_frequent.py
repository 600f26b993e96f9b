"""Drafts what most often followed the last tokens: options, state per sequence, probabilities."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from headstart.config import option
from headstart.speculators import Speculator, register
from headstart.types import Draft, DraftRequest
from headstart.types.errors import ConfigError


class Followers:
    """What followed each n tokens of one sequence, and how often."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tokens: list[int] = []
        self.counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def extend(self, tokens: Sequence[int]) -> None:
        """Read more of the text."""
        for token in tokens:
            self.counts[tuple(self.tokens[-self.size :])][token] += 1
            self.tokens.append(token)


@register
class FrequentSpeculator(Speculator):
    """Counts what followed, and drafts what did so most often."""

    name = "frequent"
    scores_are_probabilities = True

    @dataclass(frozen=True, slots=True)
    class Options:
        """Both in tokens; they become --spec-frequent-size and --spec-frequent-n-max."""

        size: int = option(2, "last tokens that are looked up")
        n_max: int = option(16, "longest draft, in tokens", limits_draft=True)

        def __post_init__(self) -> None:
            if self.size < 1 or self.n_max < 1:
                raise ConfigError(
                    f"frequent needs size and n-max of at least 1, got {self.size} and {self.n_max}"
                )

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()
        self._sequences: dict[int, Followers] = {}

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        """Count the prompt."""
        self._sequences[seq_id] = Followers(self._options.size)
        self._sequences[seq_id].extend(prompt)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Follow the highest counts."""
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        sequence = self._sequences[request.seq_id]
        last = sequence.tokens[-self._options.size :]
        tokens: list[int] = []
        scores: list[float] = []
        while len(tokens) < min(request.max_tokens, self._options.n_max):
            counts = sequence.counts.get(tuple(last))
            if not counts:
                break
            token, count = counts.most_common(1)[0]
            tokens.append(token)
            scores.append(count / (counts.total() + 1))  # that this token comes next
            last = [*last, token][-self._options.size :]
        return Draft(tokens, scores) if tokens else Draft(reason="no match")

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        """Count what came, drafted or not."""
        self._sequences[seq_id].extend(emitted)

    def end(self, seq_id: int) -> None:
        """Forget the sequence."""
        self._sequences.pop(seq_id, None)
