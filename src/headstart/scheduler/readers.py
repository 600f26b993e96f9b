"""Readers of step records: they count, learn and report after a step.

If the device is asynchronous they run while it computes the next step, so they read nothing but the
record: its cells may belong to another request by then.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from headstart.scheduler.copy_prices import LEAST_TOKENS
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.offers import GRAMMAR
from headstart.scheduler.sequence import Sequence
from headstart.scheduler.step import End, SequencePlan, StepRecord
from headstart.types.report import Counters, SpeculatorReport
from headstart.types.request import (
    ErrorEvent,
    Event,
    FinishEvent,
    PromptEvent,
    RequestStats,
    TokenEvent,
    VerifiedDraft,
)
from headstart.types.speculation_stats import SpeculationStats


class StepOutcomes:
    """What steps did for requests: events for clients, and counts of drafts.

    Each step of an answer counts, per allowed speculator, as a verified draft or one reason.
    """

    def __init__(self, speculators: dict[str, GuardedSpeculator], counters: Counters) -> None:
        self._speculators, self._counters = speculators, counters
        self._events: list[Event] = []
        # counts of drafts only: of all requests that have left, and of the others by number
        self._ended = RequestStats()
        self._requests: dict[int, RequestStats] = {}

    @property
    def total(self) -> RequestStats:
        """Counts of the drafts of all requests since the start; a copy."""
        total = RequestStats()
        for counts in (self._ended, *self._requests.values()):
            total.add(counts)
        return total

    def of(self, sequence: Sequence) -> RequestStats:
        """Counts of a request's drafts so far; a copy."""
        counts, known = RequestStats(), self._requests.get(sequence.number)
        if known is not None:  # `deepcopy` takes milliseconds after some thousand steps
            counts.add(known)
        return counts

    def report(self) -> tuple[SpeculatorReport, ...]:
        """Counts of each speculator since the start, and of forced tokens if there were any."""
        stats = self.total.by_speculator
        reports = [one.report(stats[name]) for name, one in self._speculators.items()]
        if GRAMMAR in stats:
            reports.append(SpeculatorReport(name=GRAMMAR, stats=stats[GRAMMAR]))
        return tuple(reports)

    def add(self, event: Event) -> None:
        """Send this event before those of the next step."""
        self._events.append(event)

    def take_events(self) -> list[Event]:
        """Events since the last call, in order for each request."""
        events, self._events = self._events, []
        return events

    def read(self, record: StepRecord) -> None:
        """Count a step, then queue its events: of new tokens, then of requests that ended."""
        self._count(record)
        grown: list[Event] = []
        for result in record.results:
            sequence, tokens = result.sequence, result.emitted
            if result.is_prompt:
                self._tell_prompt(result, record.now)
            if tokens:
                num_accepted = result.num_accepted
                drafted = result.sources[:num_accepted] if num_accepted else ()
                event = TokenEvent(
                    sequence.request.request_id,
                    tokens,
                    result.text,
                    (*drafted, *("",) * (len(tokens) - num_accepted)),
                    result.logprobs,
                    _describe(record, result) if sequence.request.wants_provenance else None,
                    result.seq_id,
                )
                grown.append(event)
        self._events += grown
        for end in record.ended:
            self._events.append(self._end(end))

    def _count(self, record: StepRecord) -> None:
        """Count the step, and what it did for each of its answers."""
        plan, counters = record.plan, self._counters
        if plan.num_rows:
            counters.num_decodes += 1
            counters.busy_slots += len(record.results)
            counters.padding_rows += plan.num_padding
            counters.draft_seconds += plan.drafted - plan.started
            counters.target_seconds += record.now - plan.drafted
            counters.other_seconds += record.finished - record.now
            if sum(prompt.num_rows for prompt in plan.prompts) >= LEAST_TOKENS:
                counters.prefill_rows += plan.num_rows
                counters.prefill_seconds += record.now - plan.drafted
        for call in plan.calls:
            for one in call.asked:
                sequence = one.answer.sequence
                counts = self._requests.get(sequence.number) or self._begin(sequence)
                stats = counts.by_speculator[call.speculator]
                stats.num_calls += 1
                stats.num_drafts_offered += len(one.draft.tokens) > 0
        for result in record.results:
            if result.emitted:
                sequence = result.sequence
                counts = self._requests.get(sequence.number) or self._begin(sequence)
                counts.num_steps += 1
                if not result.is_prompt:
                    _count_step(result, counts)

    def _begin(self, sequence: Sequence) -> RequestStats:
        counts = self._requests[sequence.number] = RequestStats()
        if not sequence.policy.reason:
            counts.by_speculator |= {name: SpeculationStats() for name in sequence.policy.types}
        return counts

    def _tell_prompt(self, result: SequencePlan, now: float) -> None:
        sequence = result.sequence
        request, first = sequence.request, sequence.first_token
        if result.scores:
            self._events.append(PromptEvent(request.request_id, result.scores))
        if request.wants_progress and (first is None or first == now):
            num_processed = min(result.start + result.num_rows, sequence.num_prompt)
            self._events.append(sequence.progress(now, num_processed))

    def _end(self, end: End) -> Event:
        """The last event of a request; adds the request to the counters."""
        sequence = end.sequence
        counts = self._requests.pop(sequence.number, None) or RequestStats()
        self._ended.add(counts)
        request_id = sequence.request.request_id
        stats = replace(
            end.stats,
            num_steps=counts.num_steps,
            drafts=counts.drafts,
            by_speculator=dict(counts.by_speculator),
        )
        has_run = sequence.admitted is not None
        if end.error is not None:
            self._counters.requests_failed += has_run
            return ErrorEvent(request_id, end.error, stats if has_run else None)
        if has_run:
            self._counters.add_request(stats)
        if end.rest:
            self._events.append(TokenEvent(request_id, (), end.rest, (), slot_id=stats.slot_id))
        word = sequence.stop.found.decode("utf-8", "replace") if end.reason == "word" else ""
        is_truncated = end.is_truncated or sequence.num_dropped > 0
        return FinishEvent(request_id, end.reason, stats, word, is_truncated)


def _count_step(answer: SequencePlan, counts: RequestStats) -> None:
    """Count a step of an answer: its draft, or why there was none."""
    policy = answer.sequence.policy
    verified = answer.sources[: answer.num_verified]
    if length := len(verified):
        num_accepted, start = answer.num_accepted, 0
        parts = [(verified[0], length)]
        if verified.count(verified[0]) < length:
            parts = [(name, len(list(part))) for name, part in groupby(verified)]
        for name, num_drafted in parts:
            key = start, num_drafted, max(0, min(num_drafted, num_accepted - start))
            of_speculator = counts.by_speculator[name].verified
            of_speculator[key] = of_speculator.get(key, 0) + 1
            start += num_drafted
        key = 0, length, num_accepted
        counts.drafts.verified[key] = counts.drafts.verified.get(key, 0) + 1
    else:
        reason = policy.reason or answer.reason or answer.reason_of(policy.types[0])
        counts.drafts.reasons[reason] += 1
    for name in () if policy.reason else policy.types:
        if name not in verified:
            counts.by_speculator[name].reasons[answer.reason_of(name)] += 1


def _describe(record: StepRecord, answer: SequencePlan) -> VerifiedDraft:
    """What the step verified, for a request with `wants_provenance`."""
    length = answer.num_verified
    draft, survival = answer.draft[:length], answer.survival[:length]
    is_fixed = answer.sequence.policy.is_fixed  # control is not used with fixed lengths
    return VerifiedDraft(
        tuple(map(int, draft)),
        tuple(answer.sources[:length]),
        (None,) * length if is_fixed else tuple(map(float, survival)),
        record.target_ms,
        record.draft_ms,
        # control's name for a speculator may have a suffix such as "+grammar"
        tuple(
            (offer.draft.speculator.partition("+")[0], tuple(offer.draft.tokens[:32]))
            for offer in answer.offers
            if not offer.after
        ),
    )
