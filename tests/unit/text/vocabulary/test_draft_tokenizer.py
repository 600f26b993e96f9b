"""A draft model of another vocabulary: same noise, same bytes, nothing read twice, and never a
changed text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
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
from tests.unit.text.vocabulary import real
from tests.unit.text.vocabulary.pieces import Pair, make_pair

from headstart.sampling import SamplingParams
from headstart.testing import FakeEngine
from headstart.text.vocabulary.comparison import TranslationMode
from headstart.text.vocabulary.draft_tokenizer import (
    Preference,
    TranslatingTokenizer,
    best_of,
    spread,
)
from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator
from headstart.types import Choose, DraftRequest, TokenChoice
from headstart.types.request import Request

ENDLESS = SamplingParams(temperature=0.8, ignore_eos=True)
REQUEST = Request(request_id="r", prompt=[*range(1, 31)], sampling=ENDLESS, max_tokens=60)


@pytest.fixture(params=["shared", "text", "pairs"], scope="module")
def pair(request: pytest.FixtureRequest) -> Pair:
    found = make_pair(request.param)
    assert found.translator.mode is (
        TranslationMode.SHARED if request.param == "shared" else TranslationMode.TEXT
    )
    return found


@pytest.mark.parametrize(
    ("sampling", "temperature"), [("coupled", 0.8), ("argmax", 0.0), ("coupled", 1.5)]
)
def test_a_model_that_equals_the_target_is_always_right(
    pair: Pair, sampling: str, temperature: float
) -> None:
    """Wrong positions would draw other noise, and be wrong at once."""
    engine, speculator = Model(), pair.drafter(sampling=sampling)
    request = replace(REQUEST, sampling=replace(ENDLESS, temperature=temperature))
    answers = run(make_scheduler(engine, [speculator], fixed(4)), [request])
    check(engine, [request], answers)
    stats = answers["r"].finish.stats
    assert stats.drafts.num_accepted == stats.drafts.num_drafted > 40
    assert stats.acceptance_length > 4.5  # of 5: the first step has no draft, the last a short one


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_output_is_that_of_the_target_alone(pair: Pair, temperature: float) -> None:
    requests = make_requests(8, temperature, max_tokens=16)
    for order, spec in itertools.product((2, None), (fixed(1), fixed(5), AUTO)):
        engine = Model(order)
        scheduler = make_scheduler(engine, [pair.drafter(order, 0.3)], spec)
        check(engine, requests, run(scheduler, requests))
        if spec is not AUTO:  # which may find that it does not pay
            assert scheduler.counts.total.drafts.num_drafted > 0


def test_continued_text_drafts_that_are_rejected_leave_no_trace(pair: Pair) -> None:
    requests = make_requests(8)
    for seed in range(3):
        engine = Model(2)
        chain = [*make_speculators(["suffix"], lambda: Model()), pair.drafter(2, 0.3)]
        check(
            engine,
            requests,
            run(make_scheduler(engine, chain, AUTO, RandomController(seed)), requests),
        )
        speculator: Any = chain[1]
        for seq_id, line in speculator._sequences.items():
            assert speculator.engine.cache.get(seq_id, []) == line.tokens


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_of_a_rejected_text_draft_nothing_stays_in_what_the_model_heard(
    pair: Pair, num_steps: int
) -> None:
    """It heard history and draft; then the text went another way, and more steps went by without
    it.
    """
    speculator, history = pair.drafter(), [*range(1, 21)]
    speculator.begin(0, history)
    speculator.propose([DraftRequest(0, history, 2)])
    speculator.accept(0, [3], 0)
    history.append(3)
    speculator.propose([DraftRequest(0, [*history, 5, 6, 7, 8], 2)])
    for emitted in ([5, 6, 9], [4], [8], [2, 1], [7])[:num_steps]:
        history += emitted
        speculator.accept(0, emitted, len(emitted) - 1)
    speculator.propose([DraftRequest(0, history, 2)])
    line = speculator._sequences[0]
    assert list(line.tokenizer.to_target_tokens(line.tokens))[: len(history)] == history
    assert pair.translator.target.join(history).startswith(
        pair.translator.draft.join(line.tokenizer.to_draft_tokens(history, 0)[:10])
    )


def test_coupled_drafting_beats_argmax_where_the_target_samples_and_auto_finds_out(
    pair: Pair,
) -> None:
    sampling = replace(ENDLESS, temperature=1.0)
    requests = [
        replace(REQUEST, request_id=str(i), sampling=replace(sampling, seed=i)) for i in range(4)
    ]
    accepted = {}
    for mode in ("coupled", "argmax", "auto"):
        scheduler = make_scheduler(Model(), [pair.drafter(skew=0.3, sampling=mode)])
        run(scheduler, requests)
        drafts = scheduler.counts.total.drafts
        accepted[mode] = drafts.num_accepted / drafts.num_drafted
    assert accepted["coupled"] > accepted["argmax"] + 0.1
    assert accepted["auto"] > accepted["argmax"] + 0.05


def test_no_stable_token_is_decoded_twice(pair: Pair) -> None:
    engine, speculator = Model(), pair.drafter(sampling="coupled")
    run(make_scheduler(engine, [speculator], fixed(4)), [REQUEST])
    assert isinstance(speculator.engine, FakeEngine)
    cached = speculator.engine.cache[0]
    text = pair.translator.target.join([*REQUEST.prompt, *answer(engine, REQUEST).tokens])
    assert text.startswith(pair.translator.draft.join(cached))
    if len(pair.draft.pieces) == EOS:
        assert speculator.num_decoded == len(cached)
    # a pair that was drafted as two letters is read again as one token, with at most what followed
    # it
    else:
        assert speculator.num_decoded <= 2 * len(text)


def test_no_draft_is_longer_than_asked_for(pair: Pair) -> None:
    speculator = pair.drafter()
    speculator.begin(0, REQUEST.prompt)
    for length in (1, 2, 7):
        (draft,) = speculator.propose([DraftRequest(0, REQUEST.prompt, length)])
        assert len(draft.tokens) == len(draft.confidence) == length


# One draft, token by token, between the embedded vocabularies.


@pytest.fixture(scope="module")
def demo() -> VocabularyTranslator:
    return real.translator("demo-target", "demo-draft-other")


class Speaker:
    """Feeds a draft with rows whose best tokens are given."""

    def __init__(
        self,
        translator: VocabularyTranslator,
        history: Sequence[int],
        max_tokens: int = 8,
        limit: int = 16,
    ) -> None:
        tokenizer = TranslatingTokenizer(translator, Preference("auto"))
        tokenizer.to_draft_tokens(history, 0)
        self.translator, self.history = translator, history
        self.builder: Any = tokenizer.begin(DraftRequest(0, history, max_tokens), limit)

    def say(self, *ranked: int) -> int | None:
        logits = np.zeros(self.translator.draft.size, np.float32)
        for rank, token in enumerate(ranked):
            logits[token] = 20.0 - rank
        return self.builder.extend(logits, 0.0)

    def write(self, text: bytes) -> list[bytes]:
        """Say a text; the target tokens of the draft."""
        for token in self.translator.draft_encoder.encode(text):
            self.say(token)
        return [self.translator.target.spelling(token) for token in self.builder.finish()[0]]


def tokens_of(translator: VocabularyTranslator, text: bytes) -> list[int]:
    return list(translator.target_encoder.encode(text))


def test_the_last_token_of_a_draft_is_kept_though_more_bytes_could_change_it(
    demo: VocabularyTranslator,
) -> None:
    speaker = Speaker(demo, tokens_of(demo, b"x = y"))
    assert b"".join(speaker.write(b"\n    retur")) == b"\n    retur"
    assert speaker.builder._sequence.translate(speaker.builder.tokens)[1] > 0


def test_an_end_of_turn_becomes_the_targets_and_ends_the_draft(demo: VocabularyTranslator) -> None:
    speaker = Speaker(demo, tokens_of(demo, b"return x\n"))
    (end,) = [token for token, text in demo.draft.controls.items() if text == b"<|im_end|>"]
    speaker.write(b"```")
    speaker.say(end)
    assert len(speaker.builder.tokens) == speaker.builder.limit
    (token,) = [token for token, text in demo.target.controls.items() if text == b"<|im_end|>"]
    tokens, confidence = speaker.builder.finish()
    assert tokens[-1] == token in demo.target.eog_ids
    assert len(tokens) == len(confidence)


def test_a_healed_boundary_holds_the_draft_to_the_bytes_of_the_history(
    demo: VocabularyTranslator,
) -> None:
    history = [demo.target.ids[bytes([byte])] for byte in b" retur"]
    speaker = Speaker(demo, history)
    pending = speaker.builder._sequence.pending
    assert pending
    agreeing = next(iter(demo.allowed(pending).tolist()))
    assert speaker.say(demo.draft.ids[b" print"], demo.draft.ids[b" x"], agreeing) == agreeing


def test_text_may_be_drafted_until_the_limit_in_target_tokens(demo: VocabularyTranslator) -> None:
    speaker = Speaker(demo, tokens_of(demo, b"x"), max_tokens=2)
    assert len(speaker.write(b" = y + z + w")) == 2


def _choosing(calls: list[int], pick: int) -> Choose:
    def choose(logits: NDArray[np.float32], position: int) -> TokenChoice:
        calls.append(position)
        return TokenChoice(pick, 0.5, int(logits.argmax()), 0.9)

    return choose


def test_noise_is_that_of_the_position_in_the_targets_text(demo: VocabularyTranslator) -> None:
    text = b" specification"
    ours, theirs = demo.draft_encoder.encode(text), tokens_of(demo, text)
    assert len(ours) != len(theirs)
    calls: list[int] = []
    pick = demo.target.ids[b" x"]
    history = tokens_of(demo, b"the")
    tokenizer = TranslatingTokenizer(demo, Preference("coupled"))
    tokenizer.to_draft_tokens(history, 0)
    builder: Any = tokenizer.begin(DraftRequest(0, history, 8, choose=_choosing(calls, pick)), 8)
    builder.tokens += ours
    builder._confidence += [1.0] * len(ours)
    logits = np.zeros(demo.draft.size, np.float32)
    logits[demo.draft.ids[b" y"]] = 9.0
    assert builder.extend(logits, 0.0) == demo.draft.ids[b" x"]
    assert calls == [len(history) + len(theirs)]


def test_argmax_by_order_never_asks_for_noise(demo: VocabularyTranslator) -> None:
    calls: list[int] = []
    tokenizer = TranslatingTokenizer(demo, Preference("argmax"))
    history = tokens_of(demo, b"x =")
    tokenizer.to_draft_tokens(history, 0)
    builder: Any = tokenizer.begin(DraftRequest(0, history, 8, choose=_choosing(calls, 0)), 8)
    logits = np.zeros(demo.draft.size, np.float32)
    logits[demo.draft.ids[b" y"]] = 9.0
    assert builder.extend(logits, 0.0) == demo.draft.ids[b" y"]
    assert calls == []


# Preference and confidence.


@pytest.mark.parametrize("better", [True, False])
def test_the_way_that_is_accepted_more_is_taken_and_the_choice_can_turn(better: bool) -> None:
    preference = Preference("auto")
    for _ in range(30):
        preference.compare(TokenChoice(1, 0.5, 2, 0.5), 1 if better else 2)
    assert preference.couples is better
    for _ in range(60):
        preference.compare(TokenChoice(1, 0.5, 2, 0.5), 2 if better else 1)
    assert preference.couples is not better


@pytest.mark.parametrize("sampling", ["coupled", "argmax"])
def test_a_way_given_by_hand_stays(sampling: str) -> None:
    preference = Preference(sampling)
    for _ in range(50):
        preference.compare(TokenChoice(1, 0.5, 2, 0.5), 2 if sampling == "coupled" else 1)
    assert preference.couples is (sampling == "coupled")


@pytest.mark.parametrize(
    ("probabilities", "drafted", "spelled", "skip", "expected"),
    [
        ([0.5, 0.5, 0.9], [2, 2, 3], [4, 3], 0, [0.25, 0.9]),
        # what one token says whole is certain after its begin
        ([0.5, 0.8], [4, 4], [2, 2, 4], 0, [0.5, 1.0, 0.8]),
        ([0.5, 0.8], [3, 2], [2], 3, [0.4]),  # healed bytes are the history's
        ([0.5, 0.8], [3, 2], [1, 2], 2, [0.5, 0.8]),
        ([0.7, 0.6], [2, 0], [2, 0], 0, [0.7, 0.6]),  # an end of turn has no bytes
        ([], [], [], 0, []),
    ],
)
def test_confidence_is_spread_over_tokens_that_spell_the_same_bytes(
    probabilities: list[float],
    drafted: list[int],
    spelled: list[int],
    skip: int,
    expected: list[float],
) -> None:
    assert spread(probabilities, drafted, spelled, skip) == pytest.approx(expected)


def test_listening_again_after_any_change_gives_the_whole_history_and_says_what_stayed(
    demo: VocabularyTranslator,
) -> None:
    random = np.random.default_rng(5)
    text = tokens_of(
        demo, b"def provider(self, names):\n    return [name.strip() for name in names]\n" * 3
    )
    tokenizer = TranslatingTokenizer(demo, Preference("auto"))
    tokens: list[int] = []
    before: list[int] = []
    for _ in range(60):
        known = int(random.integers(0, len(tokens) + 1))
        start = int(random.integers(0, len(text)))
        tokens = [*tokens[:known], *text[start : start + int(random.integers(1, 9))]]
        history = list(tokenizer.to_draft_tokens(tokens, known))
        fresh = TranslatingTokenizer(demo, Preference("auto"))
        assert history == list(fresh.to_draft_tokens(tokens, 0))
        assert history[: tokenizer.num_stable] == before[: tokenizer.num_stable]
        before = history


@pytest.mark.parametrize("best", [-1e5, -70.0, 0.0, 40.0, 59.9, 60.1, 1e4])
def test_the_probability_of_the_best_token_is_that_of_a_softmax(best: float) -> None:
    logits = np.random.default_rng(0).normal(-8.0, 2.5, 150_000).astype(np.float32)
    logits -= logits.max()
    logits[[7, 9]] = 0.5, -np.inf  # the best, and one that cannot come
    weights = np.exp(logits.astype(np.float64))
    token, probability = best_of(logits + np.float32(best))
    assert 0.0 < probability <= 1.0
    if abs(best) < 1e3:  # beyond, a float32 has no room for the differences
        assert token == 7
        assert probability == pytest.approx(weights[7] / weights.sum(), rel=1e-4)
