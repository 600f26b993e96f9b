"""The draft model: its cache follows the target's text, and nothing is decoded twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.harness import (
    AUTO,
    EOS,
    REQUEST,
    Model,
    RandomController,
    endless,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    renamed,
    run,
    run_checked,
    step_until,
    steps,
)
from tests.unit.scheduler.conversations import ask, conversation

from headstart.config import SpeculationConfig
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.text.vocabulary.draft_tokenizer import Preference
from headstart.types import CacheKind, DraftRequest
from headstart.types.request import SpeculativeParams


def drafter(skew: float = 0.0, most_read: int = 256) -> DraftModelSpeculator:
    """It reads all of a text, as one with another vocabulary."""
    speculator = DraftModelSpeculator(Model(skew=skew))
    speculator.most_read, speculator._can_skip = most_read, False
    return speculator


def engine_of(speculator: DraftModelSpeculator) -> Model:
    assert isinstance(speculator.engine, Model)
    return speculator.engine


def drafted_rows(
    speculator: DraftModelSpeculator,
    text: list[int],
    seq_id: int = 0,
    tenant: str = "",
    length: int = 1,
) -> int:
    """Rows that it decodes to draft for a request with this text, which then ends."""
    before = speculator.num_decoded
    speculator.begin(seq_id, text, tenant)
    speculator.propose([DraftRequest(seq_id, text, length)])
    speculator.end(seq_id)
    return speculator.num_decoded - before


@pytest.mark.parametrize("length", [1, 4, 16])
def test_only_rejected_tokens_are_decoded_in_vain(length: int) -> None:
    engine, speculator = Model(), drafter(0.4)
    answers = run(make_scheduler(engine, [speculator], fixed(length)), [REQUEST])
    stats = answers["r"].stats
    rejected = stats.drafts.num_drafted - stats.drafts.num_accepted
    assert rejected > 0
    assert speculator.num_decoded <= len(REQUEST.prompt) + stats.num_emitted + rejected


def test_it_catches_up_in_one_batch_after_it_was_not_asked() -> None:
    """The text grew by others' drafts and plain steps: one decode reads all of it."""
    speculator = drafter()
    history = [*range(1, 21)]
    speculator.begin(0, history)
    speculator.propose([DraftRequest(0, history, 1)])
    before, decodes = speculator.num_decoded, engine_of(speculator).num_decodes
    for _ in range(10):
        grown = [len(history) % 30, 5]
        history += grown
        speculator.accept(0, grown, 0)
    assert speculator.num_catch_up(0, history) == 19
    speculator.propose([DraftRequest(0, history, 1)])
    assert (speculator.num_decoded - before, engine_of(speculator).num_decodes - decodes) == (20, 1)


def test_a_new_text_is_to_be_read_as_far_as_it_does_not_share_with_the_last_one() -> None:
    """Control prices a draft by it: what an older request left in the cache is not this one's."""
    speculator, prompt = drafter(), [1, 2, 3, 4, *range(20, 2, -1)]
    drafted_rows(speculator, [*range(1, 29)], length=2)
    speculator.begin(0, prompt)
    assert speculator.num_catch_up(0, prompt) == len(prompt) - 1 - 4
    assert drafted_rows(speculator, prompt) == len(prompt) - 4


def test_who_reads_a_long_prompt_does_not_hold_up_the_others() -> None:
    speculator = drafter(most_read=8)
    texts = [[*range(1, 30)], [3, 4, 5]]
    for seq_id, text in enumerate(texts):
        speculator.begin(seq_id, text)
    reading, drafted = speculator.propose(
        [DraftRequest(seq_id, text, 2) for seq_id, text in enumerate(texts)]
    )
    assert (reading.is_ready, reading.tokens) == (False, ())
    assert drafted.is_ready
    assert len(drafted.tokens) == 2
    assert speculator.num_catch_up(0, texts[0]) == 28 - (8 - 3)


def test_accepted_drafts_need_not_be_read_again() -> None:
    speculator = drafter()
    history = [*range(1, 21)]
    speculator.begin(0, history)
    (draft,) = speculator.propose([DraftRequest(0, history, 4)])
    history += [*draft.tokens, 9]
    speculator.accept(0, [*draft.tokens, 9], 4)
    # the draft's last token; the newest does not count
    assert speculator.num_catch_up(0, history) == 1


def test_a_full_draft_cache_forgets_what_was_used_longest_ago() -> None:
    speculator = DraftModelSpeculator(Model(context_size=64, num_cells=64))
    for seq_id in range(4):
        drafted_rows(speculator, [seq_id + 1] * 14, seq_id)
    text = [9] * 20
    speculator.begin(4, text)
    drafts = [speculator.propose([DraftRequest(4, text, 1)])[0] for _ in range(2)]
    assert [bool(draft.tokens) for draft in drafts] in ([False, True], [True, True])
    kept = [bool(speculator._sequences[seq_id].tokens) for seq_id in range(4)]
    assert kept == sorted(kept)
    assert kept[3]


def test_the_second_turn_and_a_branch_start_with_what_is_cached() -> None:
    engine, speculator = Model(), drafter()
    scheduler = make_scheduler(engine, [speculator])
    first = run(scheduler, [REQUEST])["r"]
    before = speculator.num_decoded
    turn = endless([*REQUEST.prompt, *first.tokens, 3, 4, 5], 10, "turn")
    branch = endless([*REQUEST.prompt, 9, 9, 9], 10, "branch")
    run_checked(scheduler, [turn, branch])
    assert speculator.num_decoded - before <= 2 * (3 + 10 + 5)


def test_the_same_prompt_again_is_drafted_as_honestly_as_the_first_time(monkeypatch) -> None:
    """Rows of the first run must not answer for the second: its drafts are decoded anew, with its
    own seed.
    """
    monkeypatch.setattr(Preference, "couples", True)  # else it learns from the first
    engine, speculator = Model(), drafter(0.4)
    scheduler = make_scheduler(engine, [speculator])
    verified, rows = [], [0]
    for name in "abc":
        answers = run_checked(scheduler, [renamed(REQUEST, name)])
        verified.append(answers[name].stats.drafts.verified)
        rows.append(speculator.num_decoded - sum(rows))
    assert verified[0] == verified[1] == verified[2]
    assert all(rows[1] - len(REQUEST.prompt) <= spent <= rows[1] for spent in rows[2:])


@pytest.mark.parametrize(
    ("model", "requests"),
    [
        (Model(context_size=50), [REQUEST]),
        (Model(skew=0.3, context_size=128, num_cells=128), make_requests(8)),
    ],
    ids=["context", "cells"],
)
def test_a_full_draft_context_costs_drafts_only(model, requests) -> None:
    scheduler = make_scheduler(Model(), [DraftModelSpeculator(model)])
    run_checked(scheduler, requests)
    drafts = scheduler.outcomes.total.drafts
    assert drafts.num_drafted > 0
    assert drafts.reasons["draft context full"] > 0


def test_a_long_prompt_is_read_in_parts_and_drafted_afterwards() -> None:
    engine, speculator = Model(), drafter(most_read=16)
    long = replace(REQUEST, prompt=[i % 31 for i in range(100)])
    answers = run_checked(make_scheduler(engine, [speculator]), [long])
    stats = answers["r"].stats
    assert 3 <= stats.drafts.reasons["draft model is processing the prompt"] <= 8
    assert stats.drafts.num_accepted == stats.drafts.num_drafted > 30


@pytest.mark.parametrize("batch", [32, 100])
def test_a_history_longer_than_the_draft_models_batch_is_read_in_parts(batch: int) -> None:
    requests = [endless([i, *range(30)] * 9, 60, f"{i}") for i in range(3)]
    engine, draft = Model(context_size=512), Model(context_size=512, num_cells=4096)
    draft.max_batch_tokens = batch
    speculator = DraftModelSpeculator(draft)
    scheduler = make_scheduler(engine, [speculator], fixed(4))
    run_checked(scheduler, requests)
    assert scheduler.outcomes.total.drafts.num_accepted > 0


def test_a_first_token_does_not_wait_for_the_model_and_a_step_only_while_it_reads_a_part() -> None:
    speculator = DraftModelSpeculator(Model(context_size=512, num_cells=512))
    speculator.most_read = 64
    scheduler = make_scheduler(Model(context_size=512, num_cells=512), [speculator], fixed(4))
    scheduler.submit(replace(REQUEST, prompt=[i % 30 for i in range(400)]))
    step_until(scheduler, lambda answers: answers)
    assert speculator.num_decoded == 0
    decoded = [speculator.num_decoded for _ in steps(scheduler)]
    assert 64 <= max(after - before for before, after in pairwise([0, *decoded])) <= 64 + 4


@pytest.mark.parametrize("cache_kind", [CacheKind.CUT, CacheKind.CHECKPOINT])
@pytest.mark.parametrize("own", [0, 5])  # tokens of each request behind the common ones
def test_a_prompt_that_several_drafts_begin_with_is_read_once(cache_kind, own) -> None:
    """Also if all requests come at once, so that nobody has read anything when they begin."""
    common = [(7 * i + i // 31) % EOS for i in range(400)]
    requests = [endless([*common, *[i] * own], 30, f"{i}") for i in range(8)]
    speculator = DraftModelSpeculator(Model(context_size=1024, cache_kind=cache_kind))
    speculator.most_read, speculator._can_skip = 64, False
    scheduler = make_scheduler(Model(context_size=1024), [speculator], fixed(4), parallel=8)
    run_checked(scheduler, requests)
    assert scheduler.outcomes.total.drafts.num_accepted > 0
    assert speculator.num_decoded < (2 if cache_kind is CacheKind.CUT else 4) * 8 * 30 + 400


def test_who_waits_for_a_prompt_is_priced_with_what_another_has_read() -> None:
    speculator = drafter(most_read=8)
    prompts = [[*range(1, 21)], [*range(1, 19), 5, 6]]
    for seq_id, prompt in enumerate(prompts):
        speculator.begin(seq_id, prompt)
    while not speculator.propose([DraftRequest(0, prompts[0], 1)])[0].tokens:
        assert speculator.num_catch_up(1, prompts[1]) == 19
    assert speculator.num_catch_up(1, prompts[1]) == 19 - 18


@pytest.mark.parametrize("seq_id", [0, 1])
def test_what_it_has_read_for_a_tenant_is_read_again_for_another(seq_id: int) -> None:
    """In the same cells and in others: how soon drafts begin would tell what others wrote."""
    speculator, prompt = drafter(), [*range(1, 29)]
    for tenant, at, num_read in (("a", 0, 28), ("b", seq_id, 28), ("b", 2, 1)):
        speculator.begin(at, prompt, tenant)
        assert speculator.num_catch_up(at, prompt) == num_read - 1
        assert drafted_rows(speculator, prompt, at, tenant) == num_read


@pytest.mark.parametrize("share_prompts", [False, True])
def test_its_cache_is_shared_by_tenants_as_the_targets_is(share_prompts: bool) -> None:
    requests = [
        replace(REQUEST, request_id=name, namespace=name, prompt=[i % 30 for i in range(200)])
        for name in "abcd"
    ]
    speculator = DraftModelSpeculator(Model())
    scheduler = make_scheduler(Model(), [speculator], share_prompts=share_prompts)
    run_checked(scheduler, requests)
    assert (speculator.num_decoded < 4 * 200) == share_prompts


def test_it_does_not_draft_below_the_wanted_probability() -> None:
    engine, speculator = Model(), drafter()
    shy = replace(REQUEST, speculative=SpeculativeParams(p_min=0.99))
    answers = run(make_scheduler(engine, [speculator]), [shy, renamed(REQUEST, "bold")])
    few, many = (answers[n].stats.drafts for n in ("r", "bold"))
    assert 0 <= few.num_drafted < many.num_drafted
    assert few.reasons["draft model is unsure"] > 0


class SecondModelSpeculator(DraftModelSpeculator):
    """Another speculator that drafts with a model of its own."""

    name = "second-model"


@pytest.mark.parametrize("spec", [AUTO, fixed(4)], ids=["auto", "fixed"])
def test_two_draft_models_draft_side_by_side(spec: SpeculationConfig) -> None:
    """Nothing in the scheduler or in control knows a model speculator by its name."""
    requests = make_requests(6)
    drafted = {"draft-model": 0, "second-model": 0}
    for seed in range(3):
        both = [
            *make_speculators(["suffix"]),
            drafter(skew=0.9),
            SecondModelSpeculator(Model(2, skew=0.1)),
        ]
        scheduler = make_scheduler(Model(2), both, spec, RandomController(seed))
        run_checked(scheduler, requests)
        for name in drafted:
            drafted[name] += scheduler.outcomes.total.by_speculator[name].num_drafted
    assert drafted["draft-model"] > 0
    assert drafted["second-model"] > 0 or spec is not AUTO


def test_its_cache_is_kept_beside_no_prompt_of_another_tenant() -> None:
    """Of a request that ends at its first token it is told nothing."""
    scheduler = make_scheduler(Model(), [drafter(0.2)], parallel=1)
    short = replace(conversation(2, namespace="b"), max_tokens=1)
    ask(scheduler, conversation(1, namespace="a"), short, conversation(3, namespace="c"))
    kept = {stored.namespace: dict(stored.others) for stored in scheduler.cache.offloading.store}
    assert kept["a"].keys() == {"draft-model"}
    assert not kept["b"]


def test_a_restored_cache_is_its_tenants_also_if_the_request_is_cancelled() -> None:
    speculator = drafter(0.2)
    scheduler = make_scheduler(Model(), [speculator], parallel=1)
    ask(scheduler, conversation(1, namespace="a"), conversation(2, namespace="b"))
    again = conversation(1, 1, namespace="a")
    scheduler.submit(again)
    scheduler.plan()
    assert scheduler.counters.prompts_restored == 1
    scheduler.cancel(again.request_id)
    before = speculator.num_decoded
    ask(scheduler, replace(conversation(1, namespace="b"), request_id="stranger"))
    assert speculator.num_decoded - before >= 100


def test_a_saved_state_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine: memory for another copy takes 8 ms, for which the loop waits."""
    speculator = drafter()
    drafted_rows(speculator, [1, 2, 3, 4])
    saved = engine_of(speculator).save_sequence(0)
    monkeypatch.setattr(speculator.engine, "save_sequence", lambda seq_id: saved)
    state = speculator.save_sequence(0, "")
    assert state is not None
    assert state.state is saved.state
