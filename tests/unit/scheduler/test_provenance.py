"""What each step verified, for requests that ask: it agrees with the tokens and with the counts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.harness import (
    AUTO,
    Answer,
    Model,
    RandomController,
    check,
    collect,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    steps,
    submit_all,
)

from headstart.types.request import TokenEvent, VerifiedDraft

CHAIN = ("suffix", "ngram-cache", "draft-model")


@cache
def steps_of(is_auto: bool, wants_provenance: bool) -> dict[str, list[TokenEvent]]:
    """The steps of twelve requests; their answers are what they must be."""
    engine = Model(2)
    speculators = make_speculators(CHAIN, lambda: Model(2, skew=0.3))
    spec, controller = (AUTO, RandomController(3)) if is_auto else (fixed(4), None)
    scheduler = make_scheduler(engine, speculators, spec, controller)
    requests = [replace(r, wants_provenance=wants_provenance) for r in make_requests(12)]
    answers = dict[str, Answer]()
    submit_all(scheduler, requests)
    events: list[TokenEvent] = []
    for _ in steps(scheduler):
        told = (event for event in scheduler.events._events if isinstance(event, TokenEvent))
        events += [event for event in told if event.tokens]
        collect(scheduler, answers)
    check(engine, requests, answers)
    return {r.request_id: [e for e in events if e.request_id == r.request_id] for r in requests}


def step_of(event: TokenEvent) -> VerifiedDraft:
    assert event.step is not None
    return event.step


@pytest.mark.parametrize("is_auto", [False, True])
def test_accepted_tokens_are_the_first_of_the_draft_and_a_rejected_one_is_followed_by_another(
    is_auto,
):
    num_drafts, num_rejections = 0, 0
    for events in steps_of(is_auto, wants_provenance=True).values():
        for event in events:
            num_accepted = sum(map(bool, event.sources))
            step = step_of(event)
            assert step.draft[:num_accepted] == event.tokens[:num_accepted]
            assert step.sources[:num_accepted] == event.sources[:num_accepted]
            assert len(step.draft) == len(step.sources) == len(step.chances)
            assert step.target_ms >= 0
            offered, own = [tokens for _, tokens in step.offers], step.draft
            assert not own or any(own[: len(tokens)] == tokens[: len(own)] for tokens in offered)
            num_drafts += bool(own)
            if num_accepted < min(len(own), len(event.tokens)):
                num_rejections += 1
                assert event.tokens[num_accepted] != own[num_accepted]
    assert num_drafts
    assert num_rejections


def test_chances_fall_along_a_draft_and_are_unknown_with_fixed_lengths():
    chances = [
        [-1.0 if chance is None else chance for chance in step_of(event).chances]
        for events in steps_of(True, wants_provenance=True).values()
        for event in events
        if len(step_of(event).draft) > 1
    ]
    assert chances
    for some in chances:
        assert some[0] <= 1
        assert sorted(some, reverse=True) == list(some)
        assert some[-1] >= 0
    for events in steps_of(False, wants_provenance=True).values():
        assert all(chance is None for event in events for chance in step_of(event).chances)


def test_who_does_not_ask_gets_nothing():
    for events in steps_of(True, wants_provenance=False).values():
        assert all(event.step is None for event in events)
