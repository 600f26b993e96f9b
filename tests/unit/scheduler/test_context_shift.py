"""Texts longer than the context, and kept prompts of which pieces are moved."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness import (
    AUTO,
    EOS,
    SIZE,
    Answer,
    Model,
    Oracle,
    check,
    endless,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    run,
    run_checked,
)
from tests.pictures import Pictures, with_pictures
from tests.unit.scheduler.conversations import ask, conversation

from headstart.sampling.sampler import Sampler
from headstart.scheduler.context_shift import MOST_CHUNKS, find_chunks
from headstart.scheduler.sequence import OwnedTokens
from headstart.structures.prefix import common_prefix_length
from headstart.testing import FakeEngine, LetterVocab
from headstart.types import Batch, CacheKind
from headstart.types.errors import EngineError
from headstart.types.request import Request

CONTEXT = 48


def rule(engine: FakeEngine, request: Request) -> Answer:
    """Token by token; a full context loses what stands behind `num_keep` tokens."""
    sampler = Sampler(request.sampling, engine, LetterVocab.eog_ids)
    visible, answer = list(request.prompt), Answer()
    sampler.read(visible)
    while len(answer.tokens) < (request.max_tokens or 0):
        position = len(request.prompt) + len(answer.tokens)
        token = sampler.sample(engine.logits_after(visible), position)
        sampler.read([token])
        answer.tokens.append(token)
        visible.append(token)
        if token == EOS and not request.sampling.ignore_eos:
            break
        if len(visible) >= engine.context_size:
            keep = request.num_keep if request.num_keep >= 0 else len(request.prompt)
            keep = min(keep, engine.context_size - 4)
            left = len(visible) - 1 - keep
            del visible[keep : keep + min(request.num_discard or left // 2, left - 1)]
    return answer


def long_requests(temperature: float) -> list[Request]:
    keeps = ((0, 0), (5, 0), (-1, 0), (3, 7), (10_000, 0))
    return [
        replace(request, num_keep=keeps[i % 5][0], num_discard=keeps[i % 5][1])
        for i, request in enumerate(make_requests(5, temperature, max_tokens=110))
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "chain",
    [(), ("draft-model",), ("suffix", "draft-model"), ("ngram-mod", "ngram-cache")],
    ids=str,
)
def test_a_shifted_text_is_identical_with_and_without_drafts(chain, temperature) -> None:
    order = 2 if temperature else None
    requests = long_requests(temperature)
    for spec in (fixed(5), AUTO)[: 1 + bool(chain)]:
        engine = Model(order, context_size=CONTEXT)
        drafts = make_speculators(chain, lambda: Model(order, skew=0.3, context_size=CONTEXT))
        answers = run(make_scheduler(engine, drafts, spec, context_shift=True), requests)
        check(engine, requests, answers, rule)
        for request in requests:
            answer = answers[request.request_id]
            is_long = len(request.prompt) + len(answer.tokens) > CONTEXT
            assert answer.finish.truncated == is_long


def test_drafts_that_are_always_right_cross_a_shift() -> None:
    engine = Model(context_size=CONTEXT)
    request = endless([1] * 20, 100)
    oracle = Oracle(engine, [request], wrong=0.0)
    scheduler = make_scheduler(engine, [oracle], fixed(16), context_shift=True)
    check(engine, [request], run(scheduler, [request]), rule)


def test_the_log_of_a_shifted_request_counts_all_of_its_tokens() -> None:
    request = replace(long_requests(0.8)[1], max_tokens=150)
    assert request.sampling.ignore_eos
    scheduler = make_scheduler(Model(context_size=CONTEXT), context_shift=True)
    stats = run(scheduler, [request])["r1"].stats
    assert (stats.num_prompt, stats.num_emitted) == (len(request.prompt), 150)


@pytest.mark.parametrize("cache_kind", list(CacheKind))
def test_a_cache_that_cannot_be_moved_is_read_again(cache_kind: CacheKind) -> None:
    engine = Model(context_size=CONTEXT, cache_kind=cache_kind)
    engine.can_shift = False
    drafts = make_speculators(("draft-model",), lambda: Model(skew=0.3, context_size=CONTEXT))
    requests = long_requests(0.8)
    scheduler = make_scheduler(engine, drafts, fixed(3), context_shift=True)
    check(engine, requests, run(scheduler, requests), rule)
    assert all(slot.num_exact > CONTEXT for slot in scheduler.cells)


def test_what_a_shift_keeps_of_an_answer_is_read_with_the_kernels_of_prompts() -> None:
    """It belongs to the prompt then, and would have these after an interruption."""
    engine = Model(context_size=CONTEXT)
    engine.can_shift, engine.has_prompt_widths = False, True
    scheduler = make_scheduler(engine, context_shift=True)
    _, request = make_requests(2, max_tokens=110)
    scheduler.submit(replace(request, num_keep=10_000))
    as_prompt, launch = dict[int, bool](), engine.launch

    def note(batch: Batch) -> None:
        for row in range(batch.num_rows):
            as_prompt[int(batch.positions[row])] = int(batch.seq_ids[row]) in batch.prompts
        launch(batch)

    engine.launch = note  # type: ignore[method-assign]
    while scheduler.running or scheduler.waiting:
        scheduler.step()
        for sequence in scheduler.running:
            assert sequence.cells is not None
            num_decoded = min(sequence.cells.length, sequence.num_as_prompt)
            assert all(as_prompt[position] for position in range(num_decoded))


def test_what_a_shift_moved_is_not_used_for_other_requests() -> None:
    """The cells behind the kept tokens were computed behind others, which a fake cannot show."""
    scheduler = make_scheduler(Model(context_size=CONTEXT), parallel=1, context_shift=True)
    request = replace(long_requests(0.8)[1], num_keep=5)
    run(scheduler, [request])
    (slot,) = scheduler.cells
    assert slot.num_exact == 5
    following = Request(request_id="next", prompt=[*slot.tokens, 3], max_tokens=2)
    assert run(scheduler, [following])["next"].stats.num_cached == 5
    assert slot.num_exact > slot.length
    assert not scheduler.cache.offloading.store  # nor kept for later


def test_a_request_that_lost_its_cells_after_a_shift_goes_on_with_what_it_has() -> None:
    engine = Model(context_size=CONTEXT, num_cells=CONTEXT + 20)
    requests = [replace(r, num_keep=3) for r in long_requests(0.8)]
    scheduler = make_scheduler(engine, context_shift=True)
    check(engine, requests, run(scheduler, requests), rule)
    assert scheduler.counters.preemptions > 0


def reuse(prompt: Sequence[int], least: int = 4, request_id: str = "r") -> Request:
    return Request(request_id=request_id, prompt=list(prompt), max_tokens=12, cache_reuse=least)


def test_moved_pieces_are_whole_tokens() -> None:
    """Of the bytes of these one is found between two tokens; of these two, one has the character of
    the other.
    """
    assert find_chunks([0x01000000, 0x00000101, 0x0101, 7], [0x010100, 7, 8], 0, 1) == ()
    assert find_chunks([5, 7], [5 + 0x110000, 7], 0, 1) == ()
    assert find_chunks([-5, 7], [-5, 8], 0, 1) == ((0, 0, 1),)


@pytest.mark.parametrize(
    ("cached", "prompt", "least"),
    [
        ([256] * 32_000, [1] * 32_000, 4_000),
        ([5, 9] * 16_000, [5] * 32_000, 1),
        ([1] * 60_000, [*[1] * 3_999, 2] * 15, 4_000),
    ],
)
def test_no_prompt_makes_the_search_long_or_its_result_many_pieces(cached, prompt, least) -> None:
    """The first text's bytes are in the second's, but between tokens: each was a new search. The
    last are nearly periodic.
    """
    started = time.process_time()
    assert len(find_chunks(cached, prompt, 0, least)) <= MOST_CHUNKS
    assert time.process_time() - started < 0.5  # 0.005 s; 1.5 s where each token begins a search


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(1, 5),
)
def test_moved_pieces_are_the_first_that_go_on_with_the_prompt(cached, prompt, least) -> None:
    expected, start, target = [], 0, 0
    while start < len(cached):
        length = common_prefix_length(cached[start:], prompt[target:-1])
        if length >= least:
            expected.append((start, target, length))
            start, target = start + length, target + length
        else:
            start += 1
    assert find_chunks(cached, prompt, 0, least) == tuple(expected)


def test_a_prompt_with_gaps_is_answered_as_if_it_were_read() -> None:
    random = np.random.default_rng(5)
    drafts = make_speculators(("suffix",))
    scheduler = make_scheduler(Model(context_size=256), drafts, parallel=2)
    text = random.integers(0, EOS, 100).tolist()
    for index in range(40):
        kept = [t for t in np.array_split(text, 12) if random.random() < 0.8]
        prompt = [t for piece in kept for t in piece.tolist()] + [int(random.integers(0, EOS))]
        # the fake's logits are of the tokens in its cache
        run_checked(scheduler, [reuse(prompt, 4 if index % 3 else 0, f"r{index}")])
        text = (prompt + random.integers(0, EOS, 100).tolist())[:100]


def test_only_who_asks_for_moved_cells_gets_them() -> None:
    scheduler = make_scheduler(Model(context_size=256), parallel=1)
    old = list(range(SIZE - 2)) * 2
    run(scheduler, [reuse(old)])
    new = [*old[:10], *old[20:], 7]
    stats = run(scheduler, [reuse(new)])["r"].stats
    assert stats.num_cached == len(new) - 1
    assert run(scheduler, [reuse([*new, 8])])["r"].stats.num_cached == len(new)
    plain = replace(reuse([*new, 8], 0), request_id="plain")
    assert run(scheduler, [plain])["plain"].stats.num_cached == 10


def test_moved_cells_do_not_stand_for_a_prompt_that_was_read() -> None:
    """Which goes to main memory, although others hold the same tokens."""
    engine = Model(context_size=256)
    scheduler = make_scheduler(engine, parallel=2, cache_ram=1)
    run(scheduler, [reuse(list(range(SIZE - 2)) * 2)])
    moved, read = scheduler.cells
    assert engine.copy_prefix(0, 1, moved.length)
    scheduler.cache.offloading.begin_step(inf)
    for num_exact, num_kept in ((10, 1), (moved.length, 0)):
        read.hold(list(moved.tokens))
        moved.num_exact = num_exact
        before = scheduler.counters.prompts_saved
        assert scheduler.cache.offloading.keep(read)
        assert scheduler.counters.prompts_saved - before == num_kept
        for stored in list(scheduler.cache.offloading.store):
            scheduler.cache.offloading.store.take(stored)


def test_a_shift_that_fails_ends_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "shift", Mock(side_effect=EngineError("the state cannot be read")))
    engine = Model(context_size=CONTEXT)
    long, short = endless([5] * 20, 110, "long"), endless([7, 8], 4, "short")
    answers = run(make_scheduler(engine, context_shift=True), [long, short])
    check(engine, [short], answers)
    assert answers["long"].error is not None
    assert answers["long"].tokens == rule(engine, long).tokens[: CONTEXT - 20]


def test_no_shift_cuts_an_image_or_moves_what_is_behind_it() -> None:
    tokens, media = with_pictures([5] * 20, (9, 0))
    asked = replace(endless(tokens, 110, "image"), media=media)
    scheduler = make_scheduler(Model(context_size=CONTEXT), context_shift=True)
    scheduler.media = Pictures()
    assert len(run(scheduler, [asked])["image"].tokens) == CONTEXT - len(tokens)


def test_owned_tokens_read_like_a_list_and_their_copies_are_lists() -> None:
    tokens = OwnedTokens([1, 2, 3])
    tokens.grow([4, 5])
    tokens.drop(1, 3)
    assert tokens == [1, 4, 5] == [*tokens]
    copies = [tokens[:], tokens.copy(), copy.copy(tokens), copy.deepcopy(tokens), [*tokens]]
    for plain in (*copies, pickle.loads(pickle.dumps(tokens))):
        assert type(plain) is list
        plain.append(1)
    for name in ("append", "extend", "insert", "remove"):
        with pytest.raises(TypeError, match="change a copy"):
            getattr(tokens, name)(*([0, 1] if name == "insert" else [[1]]))
    with pytest.raises(TypeError, match="change a copy"):
        del tokens[0]
    with pytest.raises(TypeError, match="change a copy"):
        tokens *= 2
    assert tokens == [1, 4, 5]


def test_a_stored_prompt_is_continued_by_no_text_that_lost_a_part_of_it() -> None:
    scheduler = make_scheduler(Model(context_size=160), parallel=1, context_shift=True)
    ask(scheduler, conversation(1), conversation(2))
    scheduler.submit(replace(conversation(1, 1), max_tokens=100))
    run(scheduler)
    stored = scheduler.cache.offloading.store.only_here()
    assert conversation(1).prompt in [one.tokens.tolist()[:100] for one in stored]
