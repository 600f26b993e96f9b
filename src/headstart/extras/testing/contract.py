"""The contract of speculators, call by call, as functions that a test runs.

    from headstart.testing import check_speculator

    def test_bigram():
        check_speculator(BigramSpeculator)

Each function of `CONTRACT` takes a function that makes the speculator, and raises AssertionError
with what is wrong. They call the speculator as the scheduler does, over token ids 0 to 31.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from operator import index

import numpy as np

from headstart.extras.testing.fakes import FakeEngine, LetterVocab
from headstart.extras.testing.lossless import assert_lossless
from headstart.scheduler.sequence import OwnedTokens
from headstart.speculators.base import Speculator, why_not
from headstart.types import DecodedStates, Draft, DraftRequest

Make = Callable[[], Speculator]
Plain = list[tuple[list[int], list[float]]]


def check_speculator(make: Callable[..., Speculator], *, repeats: bool = True) -> tuple[int, int]:
    """Check the whole contract, and that the speculator changes no text.

    `make` creates it: its class, or a function if the constructor needs more than a `vocab`, which
    is the fake model's: letters, and a newline. Without `repeats` it need not draft where the text
    repeats. Returns how many tokens it drafted and how many were accepted in `assert_lossless`.

    Raises:
        AssertionError: what is wrong.
        Exception: what the speculator raised.
    """
    if "vocab" in inspect.signature(make).parameters:
        make = partial(make, vocab=LetterVocab())
    for promise in CONTRACT:
        if repeats or promise is not it_drafts_where_the_text_repeats:
            promise(make)
    return assert_lossless(make)


def it_describes_itself(make: Make) -> None:
    """A name in small letters, a docstring, options with defaults, a description in JSON."""
    speculator = make()
    kind = type(speculator)
    reason = why_not(kind)
    _require(reason is None, f"{kind.__name__} cannot be registered: {reason}")
    _require(bool(kind.__doc__), f"{kind.__name__} has no docstring")
    if kind.Options is not None:
        _require(kind.Options() == kind.Options(), "Options() must be equal to Options()")
    details = speculator.describe()
    _require(isinstance(details, dict), f"describe() returned {details!r} but must return a dict")
    json.dumps(details)


def its_calls_take_what_they_are_given(make: Make) -> None:
    """Calls that it defines take the arguments that the scheduler passes, in their order."""
    kind = type(make())
    for name, given in inspect.getmembers(Speculator, inspect.isfunction):
        if name.startswith("_") or getattr(kind, name) is given:
            continue
        arguments = list(inspect.signature(given).parameters)
        try:
            inspect.signature(getattr(kind, name)).bind(*arguments)
        except TypeError as error:
            raise AssertionError(
                f"{name} is called with ({', '.join(arguments)}), but: {error}"
            ) from error


def its_drafts_are_well_formed_and_repeatable(make: Make) -> None:
    """The same calls give the same drafts: seed whatever is random."""
    first, second = (_play(make(), 0, seed=1) for _ in range(2))
    _require(first == second, "the same calls gave other drafts; seed what is random")
    most = max((score for _, scores in first for score in scores), default=0.0)
    _require(
        most < 1.001 or not make().scores_are_probabilities,
        f"a score is {most:g} but must be a probability; for other scores, such as match lengths, "
        "set scores_are_probabilities = False",
    )


def it_drafts_where_the_text_repeats(make: Make) -> None:
    """At least one token for lines that repeat themselves."""
    speculator, line = make(), '"abc": de,\n'
    vocab = LetterVocab()
    history = OwnedTokens(vocab.tokenize(line * 8, add_special=False, parse_special=False))
    _show_states(speculator, 0, 0, history[:-1])
    speculator.begin(0, history, "")
    num_drafted = 0
    for token in list(history):
        (draft,) = speculator.propose([DraftRequest(0, history, 4)])
        num_drafted += len(draft.tokens)
        _show_states(speculator, 0, len(history) - 1, history)
        history.grow([token])
        speculator.accept(0, (token,), 0)
    _require(
        num_drafted > 0,
        f"it drafted nothing where the line {line!r} repeats itself; for one that is for other "
        "texts pass repeats=False to check_speculator",
    )


def it_answers_in_the_order_of_the_requests(make: Make) -> None:
    """Asked for together or alone, in any order: the same drafts."""
    together, alone = make(), make()
    histories = {i: OwnedTokens([i, 9, i, 9, i, 9, i]) for i in range(4)}
    for seq_id, history in histories.items():
        for speculator in (together, alone):
            _show_states(speculator, seq_id, 0, history[:-1])
            speculator.begin(seq_id, history, "")
    requests = [DraftRequest(i, histories[i], 7) for i in (2, 0, 3, 1)]
    drafts = list(together.propose(list(requests)))
    _require(len(drafts) == 4, f"propose returned {len(drafts)} drafts for 4 requests")
    got = [_checked(draft, request) for draft, request in zip(drafts, requests, strict=True)]
    expected = [_checked(alone.propose([r])[0], r) for r in requests]
    _require(got == expected, f"asked together: {got}; asked one by one: {expected}")


def it_keeps_nothing_it_was_lent(make: Make) -> None:
    """Drafts do not depend on whether the lists that it was shown live on and grow."""
    growing, fresh = (_play(make(), 0, seed=4, is_fresh=is_fresh) for is_fresh in (False, True))
    _require(
        growing == fresh,
        "drafts change with a list that was shown before; copy what is kept: list(tokens)",
    )


def it_keeps_namespaces_apart(make: Make) -> None:
    """Drafts contain nothing that another tenant wrote."""
    speculator = make()
    if speculator.is_model or speculator.needs_states:
        return  # a model may draft any token
    common, secret = [*range(1, 17)], [*range(20, 26)]
    texts = {"one": [*common, *secret] * 4, "two": [18, *common]}
    for seq_id, (namespace, text) in enumerate(texts.items()):
        history = OwnedTokens(text)
        speculator.begin(seq_id, history, namespace)
        for token in text:
            request = DraftRequest(seq_id, history, 8, namespace=namespace)
            tokens, _ = _checked(speculator.propose([request])[0], request)
            _require(
                namespace == "one" or not set(secret).intersection(tokens),
                f"the draft {tokens} has tokens that only a request of another namespace had",
            )
            history.grow([token])
            speculator.accept(seq_id, (token,), 0)
        speculator.end(seq_id)


def it_takes_sequence_ids_that_are_used_again(make: Make) -> None:
    """Ids are numbers of slots: each is used for many requests."""
    speculator = make()
    for seed in range(3):
        for seq_id in (0, 1, 0):
            _play(speculator, seq_id, seed)
    speculator.close()


def it_takes_requests_that_were_cut_off(make: Make) -> None:
    """Ended without a draft, or where `begin` failed."""
    speculator = make()
    speculator.end(5)
    speculator.begin(0, OwnedTokens([1, 2, 3]), "")
    speculator.end(0)
    _play(speculator, 0, seed=2)


def it_takes_histories_that_shrink(make: Make) -> None:
    """Between requests: what counts is the history of the request."""
    speculator = make()
    long = [1, 2, 3] * 20
    for text in (long, long[:7], long[:30], [5], [*long[:4], 9, 9, 9], long):
        history = OwnedTokens(text)
        speculator.begin(0, history, "")
        request = DraftRequest(0, history, 6)
        _checked(speculator.propose([request])[0], request)
        speculator.accept(0, (1,), 0)
        speculator.end(0)


def it_takes_short_prompts(make: Make) -> None:
    """Prompts of one and two tokens."""
    speculator = make()
    for prompt in ([1], [3, 1]):
        _play(speculator, 0, seed=3, prompt=prompt)
        speculator.begin(1, OwnedTokens(prompt), "")
        speculator.end(1)
    num_catch_up = speculator.num_catch_up(0, OwnedTokens([1, 2, 3]))
    _require(num_catch_up >= 0, f"num_catch_up returned {num_catch_up}")


CONTRACT: tuple[Callable[[Make], None], ...] = (
    it_describes_itself,
    its_calls_take_what_they_are_given,
    its_drafts_are_well_formed_and_repeatable,
    it_drafts_where_the_text_repeats,
    it_answers_in_the_order_of_the_requests,
    it_keeps_nothing_it_was_lent,
    it_keeps_namespaces_apart,
    it_takes_sequence_ids_that_are_used_again,
    it_takes_requests_that_were_cut_off,
    it_takes_histories_that_shrink,
    it_takes_short_prompts,
)


def _require(holds: bool, what_is_wrong: str) -> None:
    if not holds:
        raise AssertionError(what_is_wrong)


def _steps(seed: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Steps of a text over few tokens, so that it repeats itself: (tokens accepted, emitted)."""
    random = np.random.default_rng(seed)
    for _ in range(60):
        emitted = random.integers(0, 3, random.integers(1, 5)).tolist()
        yield int(random.integers(0, len(emitted))), tuple(emitted)


def _play(
    speculator: Speculator,
    seq_id: int,
    seed: int,
    *,
    prompt: Sequence[int] = (1, 2, 1, 2),
    is_fresh: bool = False,
) -> Plain:
    """Play one whole request with the scheduler's calls; return its drafts.

    is_fresh: each list that it is shown is a new one, and is emptied afterwards.
    """
    history, drafts = OwnedTokens(prompt), []
    _show_states(speculator, seq_id, 0, history[:-1])
    speculator.begin(seq_id, history, "")
    steps = zip(_steps(seed), itertools.cycle((1, 2, 7, 40)), strict=False)
    for (num_accepted, emitted), max_tokens in steps:
        if is_fresh:
            old, history = history, OwnedTokens(history)
            old.drop(0, len(old))
        request = DraftRequest(seq_id, history, max_tokens)
        (draft,) = speculator.propose([request])
        drafts.append(_checked(draft, request))
        verified = [history[-1], *emitted[:-1]]
        _show_states(speculator, seq_id, len(history) - 1, [*history[:-1], *verified])
        history.grow(emitted)
        speculator.accept(seq_id, emitted, num_accepted)
        speculator.go_on()
    speculator.end(seq_id)
    return drafts


def _checked(draft: Draft, request: DraftRequest) -> tuple[list[int], list[float]]:
    """Check a draft; return its tokens and scores."""
    _require(isinstance(draft, Draft), f"propose returned {draft!r} where a Draft was expected")
    tokens = [index(token) for token in draft.tokens]
    scores = [float(score) for score in draft.confidence]
    _require(
        len(tokens) <= request.max_tokens,
        f"a draft of {len(tokens)} tokens where max_tokens is {request.max_tokens}",
    )
    _require(
        len(scores) in (0, len(tokens)),
        f"{len(scores)} scores for {len(tokens)} tokens; give each token one, or none at all",
    )
    size = LetterVocab.size
    _require(
        all(0 <= token < size for token in tokens),
        f"the draft {tokens} has tokens that are not in the vocabulary (0 to {size - 1})",
    )
    _require(
        all(0.0 <= score < inf for score in scores),
        f"the scores {scores} are not all finite and 0 or more",
    )
    _require(isinstance(draft.reason, str), f"reason is {draft.reason!r} but must be a text")
    return tokens, scores


def _show_states(
    speculator: Speculator, seq_id: int, num_known: int, tokens: Sequence[int]
) -> None:
    """Show the states of these tokens in the target's cache; the first `num_known` are old."""
    if not speculator.needs_states:
        return
    if not num_known:
        speculator.truncate(seq_id, 0)
    new = np.arange(num_known, len(tokens), dtype=np.int32)
    if not len(new):
        return
    states = {
        layer: np.stack([FakeEngine.state_after(tokens[: i + 1], layer) for i in new.tolist()])
        for layer in speculator.state_layers
    }
    speculator.observe_states(
        DecodedStates(np.full(len(new), seq_id, np.int32), new, np.array(tokens)[new], states)
    )
