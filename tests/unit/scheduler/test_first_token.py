"""A request drafts once it has emitted a token, however much of its prompt was in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.harness import (
    AUTO,
    Model,
    check,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    renamed,
    run,
)

from headstart.config import SpeculationConfig
from headstart.sampling import SamplingParams
from headstart.speculators import Speculator
from headstart.types import Draft, DraftRequest
from headstart.types.request import Request

ENDLESS = SamplingParams(temperature=0.8, ignore_eos=True)
LONG = Request(
    request_id="long", prompt=[i % 31 for i in range(33)], sampling=ENDLESS, max_tokens=10
)


class Watching(Speculator):
    """Guesses anything, and remembers what it was told at the beginning."""

    name = "watching"

    def __init__(self) -> None:
        self.began: list[list[int]] = []
        self.open: set[int] = set()

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        self.began.append(list(prompt))
        self.open.add(seq_id)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        assert self.open.issuperset(r.seq_id for r in requests)
        return [Draft([1, 2])] * len(requests)

    def end(self, seq_id: int) -> None:
        self.open.discard(seq_id)


@pytest.mark.parametrize("spec", [fixed(4), AUTO], ids=["fixed", "auto"])
@pytest.mark.parametrize("chunk", [1, 16, 32, 64])
def test_begin_comes_with_the_first_token_and_the_first_step_has_no_draft(
    chunk: int, spec: SpeculationConfig
) -> None:
    """A prompt of one token, one that is all in the cache, and ones whose last token is a chunk of
    its own.
    """
    engine, watching = Model(), Watching()
    scheduler = make_scheduler(engine, [watching], spec, prefill_chunk=chunk)
    short = replace(LONG, request_id="short", prompt=[7])
    for request in (short, LONG, renamed(short, "short again"), renamed(LONG, "long again")):
        watching.began.clear()
        answers = run(scheduler, [request])
        check(engine, [request], answers)
        stats = answers[request.request_id].finish.stats
        assert watching.began == [[*request.prompt, answers[request.request_id].tokens[0]]]
        assert stats.num_steps == 1 + stats.drafts.num_drafts + sum(stats.drafts.reasons.values())
    assert stats.num_cached == len(LONG.prompt) - 1


def test_together_with_others_it_is_the_same() -> None:
    engine, watching = Model(), Watching()
    requests = [
        replace(r, prompt=r.prompt[:1]) if i % 2 else r for i, r in enumerate(make_requests(12))
    ]
    answers = run(make_scheduler(engine, [watching]), requests)
    check(engine, requests, answers)
    first = {
        (*r.prompt, answers[r.request_id].tokens[0])
        for r in requests
        if len(answers[r.request_id].tokens) > 1
    }
    assert first == {tuple(history) for history in watching.began}


def test_a_request_that_was_put_back_begins_again_with_all_it_emitted() -> None:
    engine, watching = Model(num_cells=90), Watching()
    requests = [
        replace(LONG, request_id=str(i), prompt=[i + 1] * 20, max_tokens=30) for i in range(3)
    ]
    scheduler = make_scheduler(engine, [watching])
    answers = run(scheduler, requests)
    check(engine, requests, answers)
    assert scheduler.counters.preemptions > 0
    texts = [[*r.prompt, *answers[r.request_id].tokens] for r in requests]
    for history in watching.began:
        assert len(history) > 20
        assert any(text[: len(history)] == history for text in texts)
    for request in requests:
        stats = answers[request.request_id].finish.stats
        booked = stats.drafts.num_drafts + sum(stats.drafts.reasons.values())
        assert 1 + booked <= stats.num_steps <= 1 + booked + scheduler.counters.preemptions


def test_the_earlier_answer_to_the_same_prompt_is_not_copied_though_the_prompt_is_cached() -> None:
    engine = Model()
    scheduler = make_scheduler(engine, make_speculators(["suffix"], Model), fixed(8))
    for prompt in ([3], LONG.prompt):
        first, second = (
            replace(LONG, prompt=prompt, max_tokens=40),
            replace(LONG, request_id="2", prompt=prompt),
        )
        second = replace(second, max_tokens=40)
        answers = run(scheduler, [first]) | run(scheduler, [second])
        check(engine, [first, second], answers)
        stats = [answers[name].finish.stats for name in ("long", "2")]
        assert stats[1].num_cached == len(prompt) - 1
        assert stats[0].drafts.num_accepted == stats[1].drafts.num_accepted < 20


@pytest.mark.parametrize("prompt", [[5], LONG.prompt])
def test_the_last_token_of_a_cached_prompt_is_a_row_like_any_other(prompt: list[int]) -> None:
    engine, watching = Model(), Watching()
    scheduler = make_scheduler(engine, [watching])
    run(scheduler, [replace(LONG, prompt=prompt)])
    watching.began.clear()
    only = replace(LONG, request_id="only", prompt=prompt, max_tokens=0)
    assert run(scheduler, [only])["only"].tokens == []
    assert watching.began == []  # it wanted its prompt in the cache
    scheduler.submit(replace(LONG, prompt=prompt))
    step = scheduler.step()
    assert (step.num_prompt_rows, step.num_verify_rows, step.num_slots, step.num_emitted) == (
        0,
        1,
        1,
        1,
    )
    step = scheduler.step()
    assert (step.num_prompt_rows, step.num_verify_rows, step.num_slots) == (0, 3, 1)


def test_with_no_drafts_allowed_each_step_but_the_first_says_so() -> None:
    for request in (LONG, replace(LONG, prompt=[5])):
        answers = run(make_scheduler(Model(), [Watching()], fixed(0)), [request])
        assert answers["long"].finish.stats.drafts.reasons == {"off": 9}
