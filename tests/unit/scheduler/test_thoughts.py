"""Limited thoughts: the same text with drafts and without, and no draft runs past the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.harness import AUTO, Answer, fixed, run
from tests.unit.scheduler.constrained import bytes_engine, make_constrained, make_scheduler

from headstart.config import SpeculationConfig
from headstart.scheduler.grammar_drafts import GRAMMAR
from headstart.scheduler.slot_actions import end_thoughts
from headstart.speculators import Speculator
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.speculators.ngram_simple import NgramSimpleSpeculator
from headstart.types.constraint import Constraint, ConstraintKind, ThoughtMarks
from headstart.types.request import Request, ThoughtsEnd
from headstart.types.thought_limit import NO_LIMIT, ThoughtLimit

CLOSING = b" so: </t>"
LIMIT = ThoughtLimit(
    max_tokens=17, start=b"<t>", end=b"</t>", closing=tuple(CLOSING), is_thinking=True
)


def thinking(temperature: float, constraint: Constraint | None = None) -> list[Request]:
    return [
        replace(request, thoughts=replace(LIMIT, max_tokens=17 + index))
        for index, request in enumerate(make_constrained(3, constraint, temperature))
    ]


def speculators() -> list[Speculator]:
    return [NgramSimpleSpeculator(), DraftModelSpeculator(bytes_engine())]


def answers(
    requests: Sequence[Request], drafts: Sequence[Speculator] = (), spec: SpeculationConfig = AUTO
) -> dict[str, Answer]:
    return run(make_scheduler(bytes_engine(), drafts, spec), requests)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("spec", [AUTO, fixed(6)], ids=["auto", "fixed"])
def test_limited_thoughts_are_the_same_with_and_without_drafts(
    temperature: float, spec: SpeculationConfig
) -> None:
    requests = thinking(temperature)
    plain, drafted = answers(requests), answers(requests, speculators(), spec)
    num_ended = 0
    for index, request in enumerate(requests):
        text = bytes(t for t in plain[request.request_id].tokens if t < 256)
        assert plain[request.request_id].tokens == drafted[request.request_id].tokens
        if len(text) > 17 + index:  # it did not end before
            assert 0 <= text[17 + index :].find(CLOSING) < 4  # at the end of a character
            num_ended += 1
    assert num_ended


def test_what_follows_the_thoughts_is_constrained_as_ever() -> None:
    number = Constraint(
        kind=ConstraintKind.REGEX,
        text="[0-9]{4}",
        thoughts=ThoughtMarks(b"<t>", b"</t>", is_open=True),
    )
    for request in (requests := thinking(1.0, number)):
        for drafts in ([], speculators()):
            answer = answers(requests, drafts)[request.request_id]
            assert bytes(answer.tokens).partition(CLOSING)[2].isdigit()


def test_the_end_of_the_thoughts_is_drafted_for_nothing() -> None:
    answer = answers(thinking(0.0)[:1], speculators(), fixed(16))["r0"]
    assert answer.finish.stats.by_speculator[GRAMMAR].num_accepted >= len(CLOSING) - 1


def test_thoughts_end_on_demand_and_only_for_their_tenant() -> None:
    request = replace(thinking(0.8)[0], thoughts=replace(LIMIT, max_tokens=NO_LIMIT), namespace="a")
    scheduler = make_scheduler(bytes_engine(), speculators(), AUTO)
    scheduler.submit(request)
    for _ in range(3):
        scheduler.step()
    end = ThoughtsEnd("c", request.request_id, "b")
    assert end_thoughts(end, scheduler.running) == "no active completion for this id"
    emitted = len(scheduler.running[0].text.tokens)
    assert end_thoughts(replace(end, namespace="a"), scheduler.running) == ""
    answer = run(scheduler)[request.request_id]
    assert CLOSING in bytes(token for token in answer.tokens if token < 256)
    assert len(scheduler.running) == 0 < emitted
