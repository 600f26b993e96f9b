"""Draft models with recurrent layers: their memory takes nothing back, yet drafts are right."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.harness import (
    AUTO,
    EOS,
    Model,
    RandomController,
    answer,
    check,
    fixed,
    make_requests,
    make_scheduler,
    make_speculators,
    run,
)
from tests.unit.text.vocabulary.pieces import Translated, make_pair

from headstart.config import SpeculationConfig
from headstart.sampling import SamplingParams
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.text.vocabulary.retokenizer import LOOKBEHIND
from headstart.types import CacheKind, DraftRequest
from headstart.types.request import Request

RECURRENT = CacheKind.CHECKPOINT
ENDLESS = SamplingParams(temperature=0.8, ignore_eos=True)
REQUEST = Request(request_id="r", prompt=[*range(1, 31)], sampling=ENDLESS, max_tokens=60)
VOCABULARIES = ("same", "shared", "text", "pairs")


def make_drafter(
    vocabulary: str, cache_kind: CacheKind, most_read: int = 256
) -> DraftModelSpeculator:
    engine, translator = Model(2, skew=0.3, cache_kind=cache_kind), None
    if vocabulary != "same":
        pair = make_pair(vocabulary)
        engine = Translated(pair.draft, Model(2, skew=0.3), cache_kind=cache_kind)
        translator = pair.translator
    drafter = DraftModelSpeculator(engine, DraftModelSpeculator.Options("argmax"), translator)
    drafter.most_read = most_read
    return drafter


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("most_read", [7, 256])
def test_it_drafts_what_a_model_with_attention_drafts(vocabulary: str, most_read: int) -> None:
    """Whatever is accepted, whoever is asked, and also behind a draft of somebody else."""
    random = np.random.default_rng(5)
    pair = [make_drafter(vocabulary, kind, most_read) for kind in (CacheKind.CUT, RECURRENT)]
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


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_after_a_rejection_it_reads_again_what_was_accepted_and_not_the_prompt(
    vocabulary: str,
) -> None:
    drafter = make_drafter(vocabulary, RECURRENT)
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


@pytest.mark.parametrize(
    "spec", [AUTO, fixed(4), SpeculationConfig(spec="auto", draft_min=2)], ids=str
)
def test_no_text_changes_and_the_cache_is_what_is_believed(spec: SpeculationConfig) -> None:
    """Several requests, splices behind text drafts, turns that go on."""
    requests = make_requests(8)
    drafted = 0
    for seed in range(3):
        engine = Model(2)
        chain = make_speculators(
            ["suffix", "draft-model"], lambda: Model(2, skew=0.3, cache_kind=RECURRENT)
        )
        scheduler = make_scheduler(engine, chain, spec, RandomController(seed))
        check(engine, requests, run(scheduler, requests))
        speculator = chain[1]
        assert isinstance(speculator, DraftModelSpeculator)
        assert isinstance(speculator.engine, Model)
        for seq_id, line in speculator._sequences.items():
            assert speculator.engine.cache.get(seq_id, []) == line.tokens
        drafted += scheduler.counts.total.by_speculator["draft-model"].num_drafted
    assert drafted > 0


def test_the_next_turn_starts_with_what_is_cached() -> None:
    engine, drafter = Model(), DraftModelSpeculator(Model(skew=0.2, cache_kind=RECURRENT))
    scheduler = make_scheduler(engine, [drafter], fixed(4))
    prompt = [i % 31 for i in range(150)]
    first = replace(REQUEST, prompt=prompt)
    answered = run(scheduler, [first])["r"]
    before = drafter.num_decoded
    turn = replace(
        REQUEST, request_id="turn", prompt=[*prompt, *answered.tokens[30:], 3, 4], max_tokens=10
    )
    answers = run(scheduler, [turn])
    check(engine, [turn], answers)
    # what follows the prompt is another text than before, and the prompt is not read again
    assert drafter.num_decoded - before < len(prompt)


def test_requests_with_one_prompt_share_what_was_read_of_it() -> None:
    drafter = DraftModelSpeculator(Model(cache_kind=RECURRENT))
    text = [i % 31 for i in range(100)]
    for seq_id in range(3):
        drafter.begin(seq_id, text)
        drafter.propose([DraftRequest(seq_id, [*text, seq_id], 3)])
    assert drafter.num_decoded < 2 * len(text)


def test_without_memory_for_a_state_a_draft_has_one_token() -> None:
    engine = Model(2, cache_kind=RECURRENT)
    engine.checkpoints.max_bytes = 0
    drafter = DraftModelSpeculator(engine, DraftModelSpeculator.Options("argmax"))
    drafter.begin(0, [1, 2, 3])
    (draft,) = drafter.propose([DraftRequest(0, [1, 2, 3], 4)])
    assert len(draft.tokens) == 1


def test_a_draft_that_is_always_right_reads_nothing_again() -> None:
    engine = Model()
    drafter = DraftModelSpeculator(
        Model(cache_kind=RECURRENT), DraftModelSpeculator.Options("coupled")
    )
    answers = run(make_scheduler(engine, [drafter], fixed(4)), [REQUEST])
    assert answers["r"].tokens == answer(engine, REQUEST).tokens
    assert isinstance(drafter.engine, Model)
    assert drafter.num_decoded == len(drafter.engine.cache[0])
