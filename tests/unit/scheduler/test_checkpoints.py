"""Edited and shortened histories: engines with checkpoints read again only what changed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.harness import Model, check, make_scheduler, run

from headstart.sampling import SamplingParams
from headstart.scheduler.checkpoints import choose_pauses
from headstart.types import CacheKind
from headstart.types.request import Request

MARKER = 99
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
UNCUTTABLE = [m for m in CacheKind if m is not CacheKind.CUT]


def pauses_of(tokens: Sequence[int], num_cached: int = 0, min_step: int = 1000) -> list[int]:
    return choose_pauses(tokens, num_cached, lambda token: token == MARKER, min_step)


def message(size: int) -> list[int]:
    return [MARKER, *([1] * (size - 1))]


def test_the_first_message_and_the_last_marker_get_a_checkpoint() -> None:
    prompt = [*message(30), *message(20), *message(25), *message(3)]
    assert pauses_of(prompt) == [30, 75]


def test_without_a_marker_near_the_end_the_last_tokens_are_left_out() -> None:
    assert pauses_of([1] * 100) == [96]
    assert pauses_of([*message(30), *message(200)]) == [30, 226]


def test_long_texts_are_divided_and_markers_are_preferred() -> None:
    assert pauses_of([1] * 1004, min_step=300) == [300, 600, 1000]
    prompt = [*message(30), *message(330), *message(20), *message(300), *message(3)]
    assert pauses_of(prompt, min_step=300) == [30, 360, 680]


def test_what_is_cached_and_what_is_short_get_none() -> None:
    assert pauses_of([*message(30), *message(70), *message(3)], num_cached=30) == [100]
    assert pauses_of([1] * 15) == []


@pytest.mark.parametrize("cache_kind", UNCUTTABLE)
def test_a_shortened_history_is_read_from_the_last_checkpoint(cache_kind: CacheKind) -> None:
    """A turn's thoughts are left out of the next prompt, as chat templates do."""
    engine = Model(2, cache_kind=cache_kind)
    scheduler = make_scheduler(engine, parallel=2)
    history = [i % 20 for i in range(60)]
    for turn in range(4):
        request = Request(request_id=f"turn{turn}", prompt=history, sampling=GREEDY, max_tokens=40)
        answers = run(scheduler, [request])
        check(engine, [request], answers)
        stats = answers[request.request_id].finish.stats
        if turn:
            assert stats.num_prompt - stats.num_cached <= 20 + 4
        history = [*history, *answers[request.request_id].tokens[-10:], *range(10)]


@pytest.mark.parametrize("cache_kind", UNCUTTABLE)
def test_a_checkpoint_serves_conversations_that_begin_alike(cache_kind: CacheKind) -> None:
    engine = Model(2, cache_kind=cache_kind)
    scheduler = make_scheduler(engine, parallel=3, checkpoint_min_step=20)
    start = [i % 20 for i in range(40)]
    for number in range(3):
        request = Request(
            request_id=str(number),
            prompt=[*start, *([number] * 30)],
            sampling=GREEDY,
            max_tokens=20,
        )
        answers = run(scheduler, [request])
        check(engine, [request], answers)
        assert (answers[str(number)].finish.stats.num_cached >= 20) == (number > 0)
