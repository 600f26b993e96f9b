"""Speculators that read the target's hidden states see those of every token in its cache, whatever
happens to it: a reader that checks each state, and multi-token heads whose every draft is right.
Without such a speculator no states are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests.harness import (
    AUTO,
    Model,
    RandomController,
    check,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    play,
    run,
    run_checked,
    submit_all,
)
from tests.pictures import Pictures
from tests.states import KINDS, FakeHeads, StateReader, Sure, greedy, make_any, mtp, prompt_of

from headstart.scheduler.observed_engine import ObservedEngine
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators import Speculator, base_states
from headstart.testing import ByteVocab
from headstart.types import CacheKind
from headstart.types.media import MediaChunk
from headstart.types.request import SlotAction, SpeculativeParams
from headstart.types.sampling_params import SamplingParams

READERS: dict[str, Callable[[Model], Speculator]] = {
    "reader": StateReader,
    "reader that sees rows again": lambda engine: StateReader(engine, overlap=1),
    "1 head": mtp,
    "3 heads": lambda engine: mtp(engine, 3),
}
readers = pytest.mark.parametrize("make", READERS.values(), ids=READERS)
heads = pytest.mark.parametrize("num_heads", [1, 3])
kinds = pytest.mark.parametrize("cache_kind", KINDS)


def read_by(make: Callable[[Model], Speculator], engine: Model, **limits: int) -> Scheduler:
    return make_scheduler(engine, [make(engine)], fixed(3), **limits)


def assert_all_right(scheduler: Scheduler) -> None:
    """Every draft was accepted, each row was read with its state, and nothing was lost."""
    (guarded,) = scheduler.drafting.speculators.values()
    stats = scheduler.outcomes.total.by_speculator[guarded.name]
    assert stats.num_accepted == stats.num_drafted > 0
    assert not any("states are missing" in reason for reason in stats.reasons)
    if isinstance(guarded.speculator, StateReader):
        assert not guarded.speculator.reasons
    else:
        details = guarded.describe()
        assert (details["missing_states"], details["lost"]) == (0, {})


@readers
@kinds
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_all_drafts_are_right_after_prompts_in_chunks(make, cache_kind, chunk: int) -> None:
    scheduler = read_by(make, Sure(cache_kind=cache_kind), prefill_chunk=chunk)
    run_checked(scheduler, [*(greedy(f"r{i}", prompt_of(i, 1 + 9 * i)) for i in range(7))])
    assert_all_right(scheduler)


@readers
@kinds
def test_all_drafts_are_right_after_shared_prefixes_and_turns(make, cache_kind) -> None:
    scheduler = read_by(make, Sure(cache_kind=cache_kind), parallel=3)
    first = prompt_of(1)
    run_checked(scheduler, [greedy("first", first)])
    others = [
        greedy("same", first),
        greedy("branch", [*first[:40], 9, 2]),
        greedy("turn", [*first, 3, 4, 5]),
        greedy("shorter", first[:50]),
    ]
    run_checked(scheduler, others)
    run_checked(scheduler, others[::-1])
    assert_all_right(scheduler)


@readers
@pytest.mark.parametrize("name", ["accept", "save_sequence"])
def test_after_a_failure_the_next_request_is_read_from_its_beginning(make, name, monkeypatch):
    scheduler = read_by(make, Sure(), parallel=1)
    (guarded,) = scheduler.drafting.speculators.values()
    does, errors = getattr(guarded.speculator, name), [ValueError()]

    def fail_once(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return does(*arguments)

    monkeypatch.setattr(guarded.speculator, name, fail_once)
    play(scheduler, [greedy("failed", prompt_of(1))])
    answers = play(scheduler, [greedy("next", prompt_of(2))])
    stats = answers["next"].stats.by_speculator[guarded.name]
    assert guarded.failure == f"{name}: ValueError: "
    assert stats.num_accepted == stats.num_drafted > 0
    assert not any("states are missing" in reason for reason in stats.reasons)


@readers
def test_all_drafts_are_right_after_a_prompt_came_back_from_main_memory(make) -> None:
    scheduler = read_by(make, Sure(), parallel=1)
    for turn in range(4):
        run_checked(scheduler, [greedy(f"{turn}", [*prompt_of(turn % 2), *range(turn)])])
    assert scheduler.counters.prompts_restored >= 2
    assert_all_right(scheduler)


def test_an_answer_made_again_behind_a_text_speculator_is_read_with_its_states() -> None:
    """Rows of tokens that were expected to follow had been read, and others followed."""
    engine = Model(3)
    chain = [*make_speculators(["suffix"]), reader := mtp(engine)]
    scheduler = make_scheduler(engine, chain, fixed(4), parallel=1)
    for number in range(24):
        sampling = SamplingParams(temperature=0.35, seed=number, ignore_eos=True)
        request = greedy(f"{number}", prompt_of(number // 4, 40), 40)
        run_checked(scheduler, [replace(request, sampling=sampling)])
    assert not scheduler.drafting.speculators["mtp"].failure
    assert reader.describe()["missing_states"] == 0


@pytest.mark.parametrize("num_common", [127, 128, 129])
def test_the_beginning_of_a_prompt_from_main_memory_is_known_to_its_last_block(num_common) -> None:
    """That of a prompt of which the heads had read nothing."""
    scheduler = read_by(partial(mtp, context_size=512), Sure(context_size=512), parallel=1)
    for number, size in ((1, 300), (2, 200)):
        off = SpeculativeParams(n_max=0)
        run(scheduler, [replace(greedy(f"{number}", prompt_of(number, size)), speculative=off)])
    turn = greedy("turn", [*prompt_of(1, num_common), 9, 9, 4])
    assert run(scheduler, [turn])["turn"].stats.num_cached == num_common
    assert_all_right(scheduler)


@heads
def test_all_drafts_are_right_after_another_image_with_as_many_cells(num_heads, monkeypatch):
    """Placeholders for its cells looked like the same text."""
    monkeypatch.setattr(base_states, "readable", list)  # these heads check the cells themselves
    scheduler = read_by(lambda engine: mtp(engine, num_heads), Sure(), parallel=1)
    scheduler.media = Pictures()
    for number in (3, 3, 6):
        chunk = MediaChunk(bytes([number]), 17)
        prompt = [*prompt_of(1, 20), *chunk.ids(), *prompt_of(2, 20)]
        run_checked(scheduler, [replace(greedy(f"{number}", prompt), media=((20, chunk),))])
    assert_all_right(scheduler)


@readers
@pytest.mark.parametrize("num_keep", [0, 5])
def test_all_drafts_are_right_after_a_context_shift(make, num_keep: int) -> None:
    engine = Sure(context_size=128)
    scheduler = read_by(make, engine, parallel=1, context_shift=True)
    request = replace(greedy("long", prompt_of(1), 200), num_keep=num_keep)
    assert run(scheduler, [request])["long"].finish.truncated
    assert_all_right(scheduler)


@readers
def test_all_drafts_are_right_after_a_preemption(make) -> None:
    scheduler = read_by(make, Sure(context_size=128, num_cells=160), parallel=3)
    run_checked(scheduler, [*(greedy(f"r{i}", prompt_of(i, 40), 40) for i in range(3))])
    assert scheduler.counters.preemptions > 0
    assert_all_right(scheduler)


@readers
def test_all_drafts_are_right_after_a_request_was_cancelled(make) -> None:
    scheduler = read_by(make, Sure(), parallel=1)
    submit_all(scheduler, [greedy("gone", prompt_of(1))], 4)
    scheduler.cancel("gone")
    run_checked(scheduler, [greedy("turn", [*prompt_of(1), 5, 6])])
    assert_all_right(scheduler)


def test_rows_that_a_reader_wants_to_see_again_are_decoded_again() -> None:
    scheduler = read_by(READERS["reader that sees rows again"], Model(), parallel=2)
    first = prompt_of(1)
    run_checked(scheduler, [greedy("first", first)])
    answers = run(scheduler, [greedy("branch", [*first[:40], 9, 2])])
    assert answers["branch"].stats.num_cached == 39


def test_a_checkpoint_is_told_where_it_is_made() -> None:
    engine = Sure(cache_kind=CacheKind.ROLLBACK)
    reader = StateReader(engine)
    scheduler = make_scheduler(engine, [reader], fixed(3), checkpoint_min_step=16)
    run_checked(scheduler, [greedy("long", prompt_of(1, 90))])
    assert reader.checkpoints
    assert_all_right(scheduler)


def test_a_slot_that_was_read_from_a_file_is_a_text_of_which_no_state_is_known(tmp_path) -> None:
    engine = Model()
    reader = StateReader(engine)
    scheduler = make_scheduler(engine, [reader], fixed(3), parallel=1)
    run_checked(scheduler, [greedy("first", prompt_of(1))])
    for action in ("save", "erase", "restore"):
        scheduler.act_on_slot(SlotAction("x", action, 0, str(tmp_path / "slot")))
    while scheduler.slot_actions.waiting:
        scheduler.step()
    scheduler.take_events()
    run_checked(scheduler, [greedy("turn", [*prompt_of(1), 7])])
    assert reader.reasons["behind"]
    stats = scheduler.outcomes.total.by_speculator["state-reader"]
    assert stats.reasons["states are missing"]


def test_a_reader_that_fails_costs_no_text_and_only_its_own_drafts(monkeypatch) -> None:
    engine, requests = Model(), make_requests(4)
    failing = Mock(side_effect=RuntimeError("it cannot read"))
    monkeypatch.setattr(StateReader, "observe_states", failing)
    scheduler = make_scheduler(engine, [StateReader(engine)], fixed(3))
    check(engine, requests, play(scheduler, requests))
    assert "it cannot read" in scheduler.drafting.speculators["state-reader"].failure


def test_without_a_reader_no_states_are_asked_for_and_the_engine_is_used_itself(monkeypatch):
    for name in ("publish_states", "hidden_states"):
        monkeypatch.setattr(Model, name, Mock(side_effect=AssertionError("nobody wants states")))
    scheduler = make_scheduler(Model(), make_speculators(["suffix", "ngram-cache"]))
    run_checked(scheduler, make_requests(4))
    assert not isinstance(scheduler.engine, ObservedEngine)


def test_several_heads_draft_no_more_tokens_than_there_are_heads() -> None:
    engine = Sure()
    scheduler = make_scheduler(engine, [mtp(engine, 2)], fixed(8))
    run_checked(scheduler, [greedy("r", prompt_of(1))])
    assert max(end - start for start, end, _ in scheduler.outcomes.total.drafts.verified) == 2


def test_prompts_longer_than_one_reading_are_read_over_some_steps() -> None:
    engine = Sure(context_size=1024)
    scheduler = make_scheduler(
        engine, [mtp(engine, context_size=1024)], fixed(3), parallel=2, prefill_chunk=256
    )
    run_checked(scheduler, [*(greedy(f"r{i}", prompt_of(i, 600), 24) for i in range(2))])
    stats = scheduler.outcomes.total.by_speculator["mtp"]
    assert stats.reasons["heads are processing the prompt"] >= 2
    assert_all_right(scheduler)


def test_a_drafter_that_reads_the_targets_cache_waits_for_no_prompt() -> None:
    engine = Sure(context_size=1024)
    assistant: Any = make_any("gemma4-assistant", Model, ByteVocab(), {})
    assistant.context.context_size = 1024
    scheduler = make_scheduler(engine, [assistant], fixed(3), parallel=1, prefill_chunk=256)
    run_checked(scheduler, [greedy("r", prompt_of(1, 900), 8)])
    reasons = scheduler.outcomes.total.by_speculator["gemma4-assistant"].reasons
    assert "draft model is processing the prompt" not in reasons


def test_states_that_wait_are_read_when_they_are_too_many() -> None:
    engine = Sure(context_size=1024)
    speculator = mtp(engine, 2, context_size=1024)
    speculator._most_waiting = 40
    scheduler = make_scheduler(engine, [speculator], fixed(0), prefill_chunk=16)
    run_checked(scheduler, [greedy("r", prompt_of(1, 200))])
    states = speculator.sequences[0]
    assert min(states.read) > 150
    assert states.num_states <= 60


def test_a_prompt_that_nobody_drafts_for_is_not_read() -> None:
    engine = Sure()
    speculator = mtp(engine)
    run_checked(make_scheduler(engine, [speculator], fixed(0)), [greedy("r", prompt_of(1))])
    assert speculator.num_decoded == 0


@heads
def test_verified_rows_are_read_in_one_decode_for_all_slots(num_heads: int) -> None:
    engine = Sure()
    speculator = mtp(engine, num_heads)
    scheduler = make_scheduler(engine, [speculator], fixed(3), parallel=3)
    run_checked(scheduler, [*(greedy(f"r{i}", prompt_of(i, 8), 33) for i in range(3))])
    assert_all_right(scheduler)
    assert isinstance(speculator.context, FakeHeads)
    calls = scheduler.outcomes.total.by_speculator["mtp"].num_calls / 3
    assert speculator.context.num_calls <= calls * (3 + num_heads) + 3


def test_heads_without_room_cost_drafts_and_nothing_else() -> None:
    scheduler = read_by(lambda engine: mtp(engine, num_cells=70), Sure(), parallel=2)
    requests = [greedy(f"r{i}", prompt_of(i, 50)) for i in range(4)]
    run_checked(scheduler, requests)
    details = scheduler.drafting.speculators["mtp"].describe()
    assert details["lost"]["draft context full"] > 0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["mtp", "state-reader"])
def test_texts_are_the_same_in_a_mixture_of_everything(name: str, seed: int) -> None:
    engine = Model(2, num_cells=300, context_size=128, cache_kind=KINDS[seed % 4])
    reader = mtp(engine, 1 + seed % 3) if name == "mtp" else StateReader(engine, overlap=seed % 2)
    chain = [*make_speculators(["suffix"]), reader]
    chain += make_speculators(["draft-model"])
    num = int(np.random.default_rng(seed).integers(9, 50))
    requests = make_requests(16, (0.0, 0.8, 1.5)[seed % 3], seed=seed, max_tokens=num)
    scheduler = make_scheduler(engine, chain, AUTO, RandomController(seed), parallel=3, cache_ram=1)
    run_checked(scheduler, requests)
    assert not reader.describe().get("missing_states")
