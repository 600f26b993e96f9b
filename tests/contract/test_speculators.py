"""What every registered speculator promises. A new one gets these tests by being registered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import orjson
import pytest
from tests.fake_draft_context import LAYERS, FakeDraftContext
from tests.harness import (
    AUTO,
    SIZE,
    SMALL_OPTIONS,
    Answer,
    Letters,
    Model,
    RandomController,
    check,
    fixed,
    make_requests,
    make_scheduler,
    run,
)
from tests.states import FakeHeads

from headstart.scheduler.request import Request
from headstart.speculation import make_speculator
from headstart.speculators import SPECULATORS, Speculator
from headstart.structures.token_log import VocabularyId
from headstart.types import Capability, Decoded, DecodedStates, Draft, DraftRequest

every = pytest.mark.parametrize("name", sorted(SPECULATORS))
every_pair = pytest.mark.parametrize(
    ("name", "other"), list(itertools.permutations(sorted(SPECULATORS), 2))
)

MAX_TOKENS = (1, 2, 7, 40)


def make(name: str, *, small: bool = False) -> Speculator:
    """Like the server, with all that a constructor may ask for; `small` matches short texts."""
    parts = {
        "engine": lambda: Model(2, skew=0.3),
        "translator": lambda: None,  # the draft model's ids are the target's
        "vocab": Letters,
        "vocabulary_id": lambda: VocabularyId.of(Letters()),
        "heads": FakeHeads,
        "context": lambda: FakeDraftContext(name),
        "layers": lambda: LAYERS,
    }
    return make_speculator(name, SMALL_OPTIONS if small else {}, parts)


def writes_valid_text(name: str) -> bool:
    """Those for measurements grant themselves tokens; the server marks their text as not valid."""
    return not SPECULATORS[name].skips_verification


def texts(seed: int) -> Iterator[tuple[int, list[int]]]:
    """Steps of a text over few tokens, so that it repeats itself: (tokens emitted, of them
    accepted).
    """
    random = np.random.default_rng(seed)
    for _ in range(60):
        emitted = random.integers(0, 3, random.integers(1, 5)).tolist()
        yield int(random.integers(0, len(emitted))), emitted


def decoded(seq_id: int, position: int, tokens: Sequence[int]) -> Decoded:
    rows = [Model(2).logits_after([t]) for t in tokens]
    ids = np.full(len(tokens), seq_id, np.int32)
    positions = np.arange(position, position + len(tokens), dtype=np.int32)
    return Decoded(ids, positions, np.array(tokens, np.int32), np.stack(rows))


def show_states(speculator: Speculator, seq_id: int, num_known: int, tokens: Sequence[int]) -> None:
    """The target's cache holds these tokens now, the first `num_known` of them since before."""
    if Capability.HIDDEN_STATES not in speculator.needs:
        return
    if not num_known:
        speculator.truncate(seq_id, 0)
    new = np.arange(num_known, len(tokens), dtype=np.int32)
    if not len(new):
        return
    states = {
        layer: np.stack([Model.state_after(tokens[: i + 1], layer) for i in new.tolist()])
        for layer in speculator.state_layers
    }
    speculator.observe_states(
        DecodedStates(np.full(len(new), seq_id, np.int32), new, np.array(tokens)[new], states)
    )


def play(
    speculator: Speculator, seq_id: int, seed: int, prompt: Sequence[int] = (1, 2, 1, 2)
) -> list[Draft]:
    """One request from begin to end, as the scheduler would call; returns its drafts."""
    history, drafts = list(prompt), []
    show_states(speculator, seq_id, 0, history[:-1])
    speculator.begin(seq_id, history)
    for (num_accepted, emitted), max_tokens in zip(
        texts(seed), itertools.cycle(MAX_TOKENS), strict=False
    ):
        request = DraftRequest(seq_id, history, max_tokens)
        (draft,) = speculator.propose([request])
        check_draft(draft, request)
        drafts.append(draft)
        if Capability.LOGITS in speculator.needs:
            speculator.observe(decoded(seq_id, len(history) - 1, [history[-1], *draft.tokens]))
        verified = [history[-1], *emitted[:-1]]
        show_states(speculator, seq_id, len(history) - 1, [*history[:-1], *verified])
        history += emitted
        speculator.accept(seq_id, emitted, num_accepted)
    speculator.end(seq_id)
    return drafts


def check_draft(draft: Draft, request: DraftRequest) -> None:
    assert len(draft.tokens) <= request.max_tokens
    assert len(draft.confidence) in (0, len(draft.tokens))  # left out: each token scores 1
    assert all(isinstance(t, int) and 0 <= t < SIZE for t in draft.tokens)
    assert all(np.isfinite(c) and c >= 0.0 for c in draft.confidence)
    assert isinstance(draft.reason, str)


def plain(drafts: Sequence[Draft]) -> list[tuple[list[int], list[float]]]:
    return [(list(d.tokens), list(d.confidence)) for d in drafts]


@every
def test_it_has_a_name_a_first_line_and_options_with_defaults(name: str) -> None:
    cls = SPECULATORS[name]
    assert cls.name == name == name.lower()
    assert cls.__doc__
    assert cls.needs <= set(Capability)
    if cls.Options is not None:
        assert cls.Options() == cls.Options()
    details = make(name).describe()
    assert isinstance(details, dict)
    assert orjson.dumps(details)


@every
@pytest.mark.parametrize("small", [False, True])
def test_drafts_are_well_formed_and_the_same_for_the_same_calls(name: str, small: bool) -> None:
    first, second = (play(make(name, small=small), 0, seed=1) for _ in range(2))
    assert plain(first) == plain(second)


@every
def test_it_drafts_something_for_a_text_that_repeats_itself(name: str) -> None:
    speculator = make(name)
    history = [1, 2, 3, 4, 5, 6, 7] * 8
    show_states(speculator, 0, 0, history[:-1])
    speculator.begin(0, history)
    num_drafted = 0
    for token in list(history):
        (draft,) = speculator.propose([DraftRequest(0, history, 4)])
        num_drafted += len(draft.tokens)
        if Capability.LOGITS in speculator.needs:
            speculator.observe(decoded(0, len(history) - 1, [history[-1]]))
        show_states(speculator, 0, len(history) - 1, history)
        history.append(token)
        speculator.accept(0, [token], 0)
    assert num_drafted > 0


@every
def test_drafts_come_in_the_order_of_the_requests_each_for_its_own(name: str) -> None:
    """Asked for together or alone, in any order: the same drafts."""
    together, alone = make(name, small=True), make(name, small=True)
    histories = {i: [i, 9, i, 9, i, 9, i] for i in range(4)}
    for seq_id, history in histories.items():
        show_states(together, seq_id, 0, history[:-1])
        show_states(alone, seq_id, 0, history[:-1])
        together.begin(seq_id, history)
        alone.begin(seq_id, history)
    requests = [DraftRequest(i, histories[i], MAX_TOKENS[i]) for i in (2, 0, 3, 1)]
    drafts = together.propose(requests)
    assert len(drafts) == 4
    for draft, request in zip(drafts, requests, strict=True):
        check_draft(draft, request)
    assert plain(drafts) == plain([alone.propose([r])[0] for r in requests])


@every
def test_sequence_ids_are_used_again(name: str) -> None:
    speculator = make(name)
    for seed in range(3):
        for seq_id in (0, 1, 0):
            play(speculator, seq_id, seed)
    speculator.close()


@every
def test_requests_that_were_cut_off_leave_no_trouble(name: str) -> None:
    """Ended twice, ended without a draft, begun twice without an end, asked about sequences never
    begun.
    """
    speculator = make(name)
    speculator.end(5)
    speculator.begin(0, [1, 2, 3])
    speculator.end(0)
    speculator.end(0)
    speculator.begin(0, [1, 2, 3])
    speculator.begin(0, [4, 5])
    speculator.accept(7, [1], 0)
    play(speculator, 0, seed=2)
    for tokens in ([1], [1, 2, 3] * 5):
        request = DraftRequest(99, tokens, 4)
        check_draft(speculator.propose([request])[0], request)


@every
def test_histories_may_shrink_between_requests_and_steps(name: str) -> None:
    """Edited chats, dropped reasoning: what counts is the history of the request."""
    speculator = make(name, small=True)
    long = [1, 2, 3] * 20
    for history in (long, long[:7], long[:30], [5], [*long[:4], 9, 9, 9], long):
        speculator.begin(0, history)
        request = DraftRequest(0, history, 6)
        check_draft(speculator.propose([request])[0], request)
        speculator.accept(0, [1], 0)
        speculator.end(0)
    speculator.begin(1, long)
    for history in (long, long[:10], long[:11]):
        request = DraftRequest(1, history, 6)
        check_draft(speculator.propose([request])[0], request)


@every
def test_short_prompts_are_fine(name: str) -> None:
    speculator = make(name)
    for prompt in ([], [3]):
        play(speculator, 0, seed=3, prompt=[*prompt, 1])
        speculator.begin(1, prompt)
        speculator.end(1)
    assert speculator.num_catch_up(0, [1, 2, 3]) >= 0


def check_text(
    engine: Model, requests: Sequence[Request], answers: dict[str, Answer], names: Sequence[str]
) -> None:
    """The rule's tokens; only speculators that grant tokens for a measurement may write others,
    marked as not valid.
    """
    valid = [r for r in requests if answers[r.request_id].finish.stats.is_valid]
    if all(map(writes_valid_text, names)):
        assert valid == requests
    elif len(names) == 1:
        assert valid != requests
    check(engine, valid, answers)


@every
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_output_is_identical_with_and_without_it_or_marked_as_not_valid(
    name: str, temperature: float
) -> None:
    requests = make_requests(8, temperature)
    for spec, controller in (
        *((fixed(length), None) for length in (1, 4, 16)),
        (AUTO, None),
        (AUTO, RandomController()),
    ):
        engine = Model(2)
        scheduler = make_scheduler(engine, [make(name, small=True)], spec, controller)
        check_text(engine, requests, run(scheduler, requests), [name])


@every_pair
def test_output_is_identical_in_a_chain_with_any_other_or_marked_as_not_valid(
    name: str, other: str
) -> None:
    requests = [replace(r, max_tokens=16) for r in make_requests(6)]
    for spec, controller in ((fixed(4), None), (AUTO, RandomController())):
        engine = Model(2)
        chain = [make(name, small=True), make(other, small=True)]
        scheduler = make_scheduler(engine, chain, spec, controller)
        check_text(engine, requests, run(scheduler, requests), [name, other])
