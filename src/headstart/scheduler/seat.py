"""A speculator at work: guarded against its own failures, and everything it did counted."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from headstart.scheduler.report import SpeculatorReport
from headstart.speculators.base import Speculator
from headstart.types import NO_DRAFT, Capability, Decoded, Draft, DraftRequest

log = logging.getLogger(__name__)


class Seat:
    """One speculator. When it raises it is switched off for the sequences concerned, logged once."""

    def __init__(self, speculator: Speculator, clock: Callable[[], float] = time.perf_counter) -> None:
        self.speculator = speculator
        self.name = speculator.name
        self.is_model = speculator.is_model
        self.wants_logits = Capability.LOGITS in speculator.needs
        self.vocab_size = 2**31  # the scheduler sets the target's
        self.failure = ""
        self.last_seconds = 0.0  # of the last propose
        self._clock = clock
        self._failed: set[int] = set()
        self._seconds = dict.fromkeys(("begin", "propose", "observe", "accept"), 0.0)
        self._calls = self._drafts = self._drafts_accepted = 0
        self._drafted_at: Counter[int] = Counter()
        self._accepted_at: Counter[int] = Counter()

    def can_draft(self, seq_id: int) -> bool:
        """Whether it did not fail on this sequence."""
        return seq_id not in self._failed

    def begin(self, seq_id: int, history: Sequence[int], namespace: str) -> None:
        self._failed.discard(seq_id)
        self._guarded("begin", [seq_id], lambda: self.speculator.begin(seq_id, history, namespace))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, no longer than asked for; empty where it failed."""
        self._calls += len(requests)
        drafts: list[Draft] | None = self._guarded(
            "propose", [r.seq_id for r in requests], lambda: self._checked(self.speculator.propose(requests), requests)
        )
        return [Draft(reason="speculator failed")] * len(requests) if drafts is None else drafts

    def _checked(self, drafts: Sequence[Draft], requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._cut(draft, request.max_tokens) for draft, request in zip(drafts, requests, strict=True)]

    def _cut(self, draft: Draft, max_tokens: int) -> Draft:
        """Make the draft fit; a token that does not exist would fail the whole batch, so it raises."""
        length = min(len(draft.tokens), max_tokens)
        if not length:
            return draft if draft.reason else NO_DRAFT
        if min(draft.tokens) < 0 or max(draft.tokens) >= self.vocab_size:
            raise ValueError(f"draft {list(draft.tokens)} leaves the vocabulary (0 to {self.vocab_size - 1})")
        confidence = list(draft.confidence[:length])
        confidence += [1.0] * (length - len(confidence))
        return Draft(draft.tokens[:length], confidence, self.name, num_granted=draft.num_granted)

    def observe(self, decoded: Decoded) -> None:
        if self.wants_logits:
            self._guarded("observe", set(decoded.seq_ids.tolist()), lambda: self.speculator.observe(decoded))

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        if seq_id not in self._failed:
            self._guarded("accept", [seq_id], lambda: self.speculator.accept(seq_id, emitted, num_accepted))

    def end(self, seq_id: int) -> None:
        self._guarded("accept", [seq_id], lambda: self.speculator.end(seq_id))

    def count(self, start: int, num_drafted: int, num_accepted: int) -> None:
        """Book a verified draft whose first token stood at position `start` of the step's draft."""
        self._drafts += 1
        self._drafts_accepted += num_accepted > 0
        for position in range(start, start + num_drafted):
            self._drafted_at[position] += 1
        for position in range(start, start + num_accepted):
            self._accepted_at[position] += 1

    def report(self) -> SpeculatorReport:
        length = max(self._drafted_at, default=-1) + 1
        return SpeculatorReport(
            name=self.name,
            calls=self._calls,
            drafts=self._drafts,
            drafts_accepted=self._drafts_accepted,
            drafted=self._drafted_at.total(),
            accepted=self._accepted_at.total(),
            drafted_by_position=tuple(self._drafted_at[i] for i in range(length)),
            accepted_by_position=tuple(self._accepted_at[i] for i in range(length)),
            seconds=dict(self._seconds),
            failure=self.failure,
            details=self.speculator.describe(),
        )

    def _guarded(self, phase: str, seq_ids: Sequence[int] | set[int], call: Callable[[], Any]) -> Any:
        started = self._clock()
        try:
            return call()
        except Exception as error:  # a guess is never worth a request
            self._failed.update(seq_ids)
            if not self.failure:
                log.exception("speculator %s failed in %s and is off for sequences %s", self.name, phase, list(seq_ids))
            self.failure = f"{phase}: {type(error).__name__}: {error}"
            return None
        finally:
            self.last_seconds = self._clock() - started
            self._seconds[phase] += self.last_seconds
