"""What speculators share that draft with a model: a draft while it grows, and timing decodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from headstart.text.vocabulary.draft_tokenizer import DraftBuilder
from headstart.types import NO_DRAFT, Draft, DraftRequest

SAMPLE_ROWS = 64  # read to time reading


@dataclass(slots=True)
class GrowingDraft:
    """One request's draft."""

    request: DraftRequest
    builder: DraftBuilder | None = None  # None where there can be no draft
    reason: str = ""  # why there is none
    scores: list[float] = field(default_factory=list)  # of its tokens, if the builder's do not hold

    @property
    def has_room(self) -> bool:
        """Whether it may have one more token."""
        builder = self.builder
        return builder is not None and not self.reason and len(builder.tokens) < builder.limit

    @property
    def has_begun(self) -> bool:
        """Whether it has a token."""
        return self.builder is not None and bool(self.builder.tokens)

    def finish(self, name: str, unsure: str) -> Draft:
        """The finished draft; `unsure` is the reason if it has no token."""
        if self.builder is None or self.reason:
            return Draft(reason=self.reason, is_ready=False)
        tokens, confidence = self.builder.finish()
        if not tokens:
            return NO_DRAFT if self.has_begun else Draft(reason=unsure)
        return Draft(tokens, self.scores or confidence, name)


def times_of(
    clock: Callable[[], float], draft: Callable[[], None], read: Callable[[], None]
) -> tuple[float, float]:
    """Milliseconds of a draft round and of reading a sample; a slow machine is timed once."""
    rounds, readings, end = list[float](), list[float](), clock() + 1.5
    for _ in range(3):  # the first brings the weights into memory
        for work, times in ((draft, rounds), (read, readings)):
            started = clock()
            work()
            times.append(1000.0 * (clock() - started))
        if clock() > end:
            break
    return median(rounds[1:] or rounds), median(readings[1:] or readings)
