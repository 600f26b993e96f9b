"""Shared code of speculators with a model: a growing draft, and timing decodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from headstart.text.vocabulary.draft_tokenizer import DraftBuilder
from headstart.types import NO_DRAFT, Draft, DraftRequest

SAMPLE_ROWS = 64  # decoded for timing


@dataclass(slots=True)
class GrowingDraft:
    """The draft of one request."""

    request: DraftRequest
    builder: DraftBuilder | None = None  # None if no draft is possible
    reason: str = ""  # why there is no draft
    scores: list[float] = field(default_factory=list)  # of its tokens, if not the builder's

    @property
    def has_room(self) -> bool:
        """Whether another token fits."""
        builder = self.builder
        return builder is not None and not self.reason and len(builder.tokens) < builder.limit

    @property
    def has_begun(self) -> bool:
        """Whether it has a token."""
        return self.builder is not None and bool(self.builder.tokens)

    def finish(self, unsure: str) -> Draft:
        """The finished draft; `unsure` is the reason if it is empty."""
        if self.builder is None or self.reason:
            return Draft(reason=self.reason, is_ready=False)
        tokens, confidence = self.builder.finish()
        if not tokens:
            return NO_DRAFT if self.has_begun else Draft(reason=unsure)
        return Draft(tokens, self.scores or confidence)


def times_of(
    clock: Callable[[], float], draft: Callable[[], None], read: Callable[[], None]
) -> tuple[float, float]:
    """Milliseconds of a draft round and of decoding a sample; a slow machine is timed once."""
    rounds, readings, end = list[float](), list[float](), clock() + 1.5
    for _ in range(3):  # the first round loads the weights into memory
        for work, times in ((draft, rounds), (read, readings)):
            started = clock()
            work()
            times.append(1000.0 * (clock() - started))
        if clock() > end:
            break
    return median(rounds[1:] or rounds), median(readings[1:] or readings)
