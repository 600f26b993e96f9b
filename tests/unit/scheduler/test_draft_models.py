"""Draft models of every kind: with the target's vocabulary or another, with attention or recurrent
layers, whose memory takes nothing back. Drafts are right, nothing is read twice, no text changes.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.harness import (
    AUTO,
    ENDLESS,
    EOS,
    REQUEST,
    Model,
    RandomController,
    answer,
    endless,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    run,
    run_checked,
)
from tests.unit.text.vocabulary.pieces import VOCABULARIES, make_drafter, make_translator

from headstart.config import SpeculationConfig
from headstart.testing import FakeEngine
from headstart.text.vocabulary.draft_tokenizer import Preference
from headstart.text.vocabulary.retokenizer import LOOKBEHIND
from headstart.types import CacheKind, DraftRequest

CUT, RECURRENT = CacheKind.CUT, CacheKind.CHECKPOINT
N_MIN = SpeculationConfig(spec="auto", draft_min=2)
TRANSLATED = VOCABULARIES[1:]
every = pytest.mark.parametrize("vocabulary", VOCABULARIES)
translated = pytest.mark.parametrize("vocabulary", TRANSLATED)


@translated
def test_vocabularies_are_compared_by_what_they_share(vocabulary: str) -> None:
    mode = "shared" if vocabulary == "shared" else "text"
    assert make_translator(vocabulary)[1].mode == mode


@every
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_a_model_that_equals_the_target_is_always_right(vocabulary: str, temperature: float):
    """Wrong positions would draw other noise, and be wrong at once."""
    engine, speculator = Model(), make_drafter(vocabulary)
    request = replace(REQUEST, sampling=replace(ENDLESS, temperature=temperature))
    answers = run_checked(make_scheduler(engine, [speculator], fixed(4)), [request])
    stats = answers["r"].stats
    assert stats.drafts.num_accepted == stats.drafts.num_drafted > 40
    assert stats.acceptance_length > 4.5  # of 5: the first step has no draft, the last a short one


@every
def test_coupled_drafting_beats_argmax_where_the_target_samples(vocabulary: str, monkeypatch):
    requests = [
        endless(range(1, 31), 60, f"{i}", sampling=replace(ENDLESS, seed=i, temperature=1.0))
        for i in range(4)
    ]
    accepted = []
    for _ in range(2):
        scheduler = make_scheduler(Model(), [make_drafter(vocabulary, skew=0.3)])
        run(scheduler, requests)
        drafts = scheduler.outcomes.total.drafts
        accepted.append(drafts.num_accepted / drafts.num_drafted)
        monkeypatch.setattr(Preference, "couples", False)
    assert accepted[0] > accepted[1] + 0.05


@pytest.mark.parametrize(
    ("vocabulary", "cache_kind"), [*((name, CUT) for name in VOCABULARIES), ("same", RECURRENT)]
)
def test_nothing_is_decoded_twice_when_all_drafts_are_accepted(vocabulary, cache_kind) -> None:
    engine = Model()
    speculator = make_drafter(vocabulary, cache_kind=cache_kind)
    run(make_scheduler(engine, [speculator], fixed(4)), [REQUEST])
    assert isinstance(speculator.engine, FakeEngine)
    cached, text = speculator.engine.cache[0], [*REQUEST.prompt, *answer(engine, REQUEST).tokens]
    if vocabulary == "same":
        assert cached == text[: len(cached)]
    else:
        _, translator = make_translator(vocabulary)
        assert translator.target.join(text).startswith(translator.draft.join(cached))
    # a pair that was drafted as two letters is read again as one token, with what followed it
    if vocabulary == "pairs":
        assert speculator.num_decoded <= 2 * len(text)
    else:
        assert speculator.num_decoded == len(cached)


@pytest.mark.parametrize(
    ("vocabulary", "cache_kind", "spec"),
    [
        *(("same", CUT, spec) for spec in (AUTO, N_MIN)),
        *(("same", RECURRENT, spec) for spec in (AUTO, fixed(4), N_MIN)),
        *((vocabulary, CUT, AUTO) for vocabulary in TRANSLATED),
    ],
)
def test_behind_the_drafts_of_others_no_text_changes_and_the_cache_is_what_is_believed(
    vocabulary: str, cache_kind: CacheKind, spec: SpeculationConfig
) -> None:
    """Several requests, splices behind text drafts that may turn out wrong, turns that go on."""
    requests = make_requests(8)
    drafted = 0
    for seed in range(3):
        engine = Model(2)
        speculator = make_drafter(vocabulary, order=2, skew=0.3, cache_kind=cache_kind)
        chain = [*make_speculators(["suffix"]), speculator]
        scheduler = make_scheduler(engine, chain, spec, RandomController(seed))
        run_checked(scheduler, requests)
        assert isinstance(speculator.engine, FakeEngine)
        for seq_id, line in speculator._sequences.items():
            assert speculator.engine.cache.get(seq_id, []) == line.tokens
        drafted += scheduler.outcomes.total.by_speculator["draft-model"].num_drafted
    assert drafted > 0


@translated
@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_of_a_rejected_text_draft_nothing_stays_in_what_the_model_heard(vocabulary: str, num_steps):
    """It heard history and draft; then the text went another way, and more steps went by without
    it.
    """
    speculator, history = make_drafter(vocabulary), [*range(1, 21)]
    speculator.begin(0, history)
    speculator.propose([DraftRequest(0, history, 2)])
    speculator.accept(0, [3], 0)
    history.append(3)
    speculator.propose([DraftRequest(0, [*history, 5, 6, 7, 8], 2)])
    for emitted in ([5, 6, 9], [4], [8], [2, 1], [7])[:num_steps]:
        history += emitted
        speculator.accept(0, emitted, len(emitted) - 1)
    speculator.propose([DraftRequest(0, history, 2)])
    line, (_, translator) = speculator._sequences[0], make_translator(vocabulary)
    assert list(line.tokenizer.to_target_tokens(line.tokens))[: len(history)] == history
    assert translator.target.join(history).startswith(
        translator.draft.join(line.tokenizer.to_draft_tokens(history, 0)[:10])
    )


@translated
def test_no_draft_is_longer_than_asked_for(vocabulary: str) -> None:
    speculator = make_drafter(vocabulary)
    speculator.begin(0, REQUEST.prompt)
    for length in (1, 2, 7):
        (draft,) = speculator.propose([DraftRequest(0, REQUEST.prompt, length)])
        assert len(draft.tokens) == len(draft.confidence) == length


@every
@pytest.mark.parametrize("most_read", [7, 256])
def test_it_drafts_what_a_model_with_attention_drafts(vocabulary: str, most_read: int) -> None:
    """Whatever is accepted, whoever is asked, and also behind a draft of somebody else."""
    random = np.random.default_rng(5)
    pair = [
        make_drafter(vocabulary, order=2, skew=0.3, cache_kind=kind) for kind in (CUT, RECURRENT)
    ]
    for drafter in pair:
        drafter.most_read = most_read
    texts = {seq_id: [i % 30 for i in range(20 + 50 * seq_id)] for seq_id in range(3)}
    for drafter in pair:
        for seq_id, text in texts.items():
            drafter.begin(seq_id, text)
    num_drafted = 0
    for _ in range(120):
        requests = []
        for seq_id, text in texts.items():
            foreign = random.integers(0, 30, int(random.integers(4))).tolist()
            history = [*text, *(foreign if random.random() < 0.2 else ())]
            if random.random() < 0.8:
                requests.append(DraftRequest(seq_id, history, int(random.integers(1, 7))))
        drafts, others = (drafter.propose(requests) for drafter in pair)
        # how much of a prompt is read in one call is not what this is about
        is_ready = [a.is_ready and b.is_ready for a, b in zip(drafts, others, strict=True)]
        assert [d.tokens for d, ok in zip(drafts, is_ready, strict=True) if ok] == [
            d.tokens for d, ok in zip(others, is_ready, strict=True) if ok
        ]
        num_drafted += sum(len(d.tokens) for d in others)
        for request, draft in zip(requests, others, strict=True):
            whole = [*request.tokens[len(texts[request.seq_id]) :], *draft.tokens]
            whole = list(itertools.takewhile(EOS.__ne__, whole))
            kept = int(random.integers(len(whole) + 1))
            emitted = [*whole[:kept], int(random.integers(30))]
            texts[request.seq_id] += emitted
            for drafter in pair:
                drafter.accept(request.seq_id, emitted, kept)
    assert num_drafted > 200


@every
def test_after_a_rejection_it_reads_again_what_was_accepted_and_not_the_prompt(vocabulary: str):
    drafter = make_drafter(vocabulary, order=2, skew=0.3, cache_kind=RECURRENT)
    # of a text without words the tokens of the last bytes may change yet
    open_end = 2 * LOOKBEHIND if vocabulary in ("text", "pairs") else 0
    text = [i % 30 for i in range(200)]
    drafter.begin(0, text)
    for turn in range(20):
        before = drafter.num_decoded
        (draft,) = drafter.propose([DraftRequest(0, text, 6)])
        # the text since the kept state, the draft's own tokens, and healing
        assert turn == 0 or drafter.num_decoded - before < open_end + 16 + 2 * 6 + 8
        emitted = [*itertools.takewhile(EOS.__ne__, draft.tokens[:2]), (turn * 7) % 30]
        drafter.accept(0, emitted, min(2, len(draft.tokens)))
        text += emitted
        assert drafter.num_catch_up(0, text) <= open_end + 16 + 6


def test_the_next_turn_starts_with_what_is_cached() -> None:
    engine, drafter = Model(), make_drafter("same", skew=0.2, cache_kind=RECURRENT)
    scheduler = make_scheduler(engine, [drafter], fixed(4))
    prompt = [i % 31 for i in range(150)]
    answered = run(scheduler, [endless(prompt, 60)])["r"]
    before = drafter.num_decoded
    turn = endless([*prompt, *answered.tokens[30:], 3, 4], 10, "turn")
    run_checked(scheduler, [turn])
    # what follows the prompt is another text than before, and the prompt is not read again
    assert drafter.num_decoded - before < len(prompt)


def test_requests_with_one_prompt_share_what_was_read_of_it() -> None:
    drafter = make_drafter("same", cache_kind=RECURRENT)
    text = [i % 31 for i in range(100)]
    for seq_id in range(3):
        drafter.begin(seq_id, text)
        drafter.propose([DraftRequest(seq_id, [*text, seq_id], 3)])
    assert drafter.num_decoded < 2 * len(text)


def test_without_memory_for_a_state_a_draft_has_one_token() -> None:
    drafter = make_drafter("same", cache_kind=RECURRENT)
    assert isinstance(drafter.engine, FakeEngine)
    drafter.engine.checkpoints.max_bytes = 0
    drafter.begin(0, [1, 2, 3])
    (draft,) = drafter.propose([DraftRequest(0, [1, 2, 3], 4)])
    assert len(draft.tokens) == 1
