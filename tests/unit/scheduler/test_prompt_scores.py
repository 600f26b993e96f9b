"""How likely a prompt's tokens are: the same however it is read, and told once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.harness import Model, Oracle, check, fixed, make_requests, make_scheduler, run

from headstart.sampling.logprobs import token_logprobs
from headstart.types.request import Request


def scored_requests() -> list[Request]:
    return [
        replace(request, wants_prompt_scores=True, cache_prompt=False, num_logprobs=2)
        if index % 2
        else request
        for index, request in enumerate(make_requests(7))
    ]


def expected(engine: Model, prompt: Sequence[int]) -> list[tuple[int, float]]:
    return [
        (token, token_logprobs(engine.logits_after(prompt[:at]), token, 2)[0])
        for at, token in enumerate(prompt)
        if at
    ]


@pytest.mark.parametrize(
    ("limits", "cells", "outputs"),
    [
        ({}, None, 128),
        ({"prefill_chunk": 3}, None, 128),
        ({"parallel": 2}, None, 9),  # outputs are fewer than the prompts' rows
        ({"prefill_chunk": 5}, 90, 128),  # requests are preempted
    ],
)
def test_scores_do_not_depend_on_how_a_prompt_is_read(
    limits: dict[str, Any], cells: int | None, outputs: int
) -> None:
    engine = Model(2, num_cells=cells)
    engine.max_outputs = outputs
    requests = scored_requests()
    scheduler = make_scheduler(engine, [Oracle(Model(2), requests, wrong=0.3)], fixed(4), **limits)
    answers = run(scheduler, requests)
    check(engine, requests, answers)
    for request in requests:
        found = answers[request.request_id].prompt_logprobs
        if not request.wants_prompt_scores:
            assert found == []
            continue
        wanted = expected(engine, request.prompt)
        assert [one.token for one in found] == [token for token, _ in wanted]
        np.testing.assert_allclose([one.logprob for one in found], [p for _, p in wanted])
        assert all(len(one.top) == 2 for one in found)
    assert (scheduler.counters.preemptions > 0) == (cells is not None)


def test_a_prompt_can_be_scored_without_an_answer() -> None:
    engine = Model(2)
    (request,) = (one for one in scored_requests()[1:2])
    scheduler = make_scheduler(engine)
    for name in ("a", "b"):  # the second time it is cached, and read all the same
        one = replace(request, request_id=name, max_tokens=0)
        found = run(scheduler, [one])[name]
        assert len(found.prompt_logprobs) == len(request.prompt) - 1
        assert (found.tokens, found.reason) == ([], "length")
