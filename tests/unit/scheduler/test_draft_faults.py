"""Speculators that change what they are shown change no text; the failure says what to mend."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

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
    play,
    run,
)

from headstart.scheduler.owned_tokens import OwnedTokens
from headstart.speculators import Speculator
from headstart.speculators.suffix import SuffixSpeculator
from headstart.types import Capability, Decoded, Draft, DraftRequest

MODES = pytest.mark.parametrize(
    ("spec", "control"),
    [(fixed(4), None), (AUTO, None), (AUTO, RandomController())],
    ids=["fixed", "auto", "random"],
)


class Calling(Speculator):
    """Does something in one of its calls, and drafts three tokens."""

    name = "calling"
    needs = frozenset({Capability.LOGITS})

    def __init__(self, call: str, do: Callable[[Any], object]) -> None:
        self._call, self._do = call, do

    def _called(self, call: str, what: object) -> None:
        if call == self._call:
            self._do(what)

    def begin(self, seq_id: int, prompt: Sequence[int], namespace: str = "") -> None:
        self._called("begin", prompt)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = [Draft([1, 2, 3]) for _ in requests]
        for request in list(requests):
            self._called("propose", request)
        self._called("propose all", requests)
        return drafts

    def observe(self, decoded: Decoded) -> None:
        self._called("observe", decoded)

    def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
        self._called("accept", emitted)

    def end(self, seq_id: int) -> None:
        self._called("end", seq_id)


def set_limit(request: DraftRequest) -> None:
    request.max_tokens = 10**6


def set_sequence(request: DraftRequest) -> None:
    request.seq_id = 77


def replace_last(request: DraftRequest) -> None:
    request.tokens[-1] = 5  # type: ignore[index]  # the mistake under test


def lengthen(request: DraftRequest) -> None:
    request.tokens += [1]  # type: ignore[operator]  # the mistake under test


CHANGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "append": ("propose", lambda request: request.tokens.append(5)),
    "sort": ("propose", lambda request: request.tokens.sort()),
    "pop": ("propose", lambda request: request.tokens.pop()),
    "replace": ("propose", replace_last),
    "lengthen": ("propose", lengthen),
    "prompt": ("begin", lambda prompt: prompt.append(5)),
    "emitted": ("accept", lambda emitted: emitted.append(5)),
    "exit": ("propose", lambda request: sys.exit(3)),
    "exit at the end": ("end", lambda seq_id: sys.exit(3)),
}


@MODES
@pytest.mark.parametrize("change", CHANGES)
def test_a_speculator_that_changes_tokens_fails_and_changes_no_text(
    change: str, spec, control
) -> None:
    engine, requests = Model(2), make_requests(6)
    chain = [Calling(*CHANGES[change]), SuffixSpeculator()]
    scheduler = make_scheduler(engine, chain, spec, control)
    check(engine, requests, play(scheduler, requests))
    failure = scheduler.drafting.speculators["calling"].failure
    assert failure.startswith(f"{CHANGES[change][0]}: ")
    if CHANGES[change][0] in ("begin", "propose") and change != "exit":
        assert "list(tokens)" in failure


@MODES
@pytest.mark.parametrize(
    ("call", "do"),
    [
        ("propose", set_limit),
        ("propose", set_sequence),
        ("propose all", lambda requests: requests.clear()),
        ("propose all", lambda requests: requests.reverse()),
        ("observe", lambda decoded: decoded.tokens.fill(99)),
        ("observe", lambda decoded: decoded.seq_ids.fill(99)),
    ],
    ids=["limit", "sequence", "clear", "reverse", "observed", "observed sequences"],
)
def test_a_request_that_is_changed_changes_no_text(call: str, do, spec, control) -> None:
    engine, requests = Model(2), make_requests(6)
    scheduler = make_scheduler(engine, [Calling(call, do), SuffixSpeculator()], spec, control)
    check(engine, requests, run(scheduler, requests))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "propose returned None but must return a list of Draft"),
        ({1: Draft([1])}, "must return a list of Draft"),
        (Draft([1]), "must return a list of Draft"),
        ([], "propose returned 0 drafts for 1 requests; return one per request"),
        ([Draft(), Draft()], "propose returned 2 drafts for 1 requests"),
        ([None], "propose returned None where a Draft was expected; return Draft()"),
        ([[1, 2]], "propose returned [1, 2] where a Draft was expected"),
        ([Draft(token for token in [1])], "Draft.tokens is <generator object"),
        ([Draft({1, 2})], "Draft.tokens is {1, 2} but must be a list of ints"),
        ([Draft([1.5])], "ints as tokens"),
        ([Draft(np.ones((2, 2), int))], "ints as tokens"),
        ([Draft([1], 0.5)], "Draft.confidence is 0.5 but must be a list of floats"),
        ([Draft([1], None)], "Draft.confidence is None"),
        ([Draft([1], [float("nan")])], "leave confidence out"),
        ([Draft([7, 32])], "token 32, but the ids of the target are 0 to 31"),
        ([Draft(reason=None)], "reason is None but must be a text"),
    ],
)
def test_a_wrong_answer_is_explained_with_the_remedy(answer: Any, says: str, caplog) -> None:
    class Wrong(Speculator):
        name = "wrong"

        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            return answer

    engine, requests = Model(), make_requests(1)
    scheduler = make_scheduler(engine, [Wrong()])
    check(engine, requests, play(scheduler, requests))
    assert says in scheduler.drafting.speculators["wrong"].failure
    assert len(caplog.records) == 1
    assert says in caplog.text


def test_a_generator_of_drafts_is_as_good_as_a_list() -> None:
    class Lazy(Speculator):
        name = "lazy"

        def propose(self, requests: Sequence[DraftRequest]) -> Any:
            return (Draft([1]) for _ in requests)

    engine, requests = Model(), make_requests(3)
    scheduler = make_scheduler(engine, [Lazy()])
    check(engine, requests, run(scheduler, requests))
    assert scheduler.drafting.speculators["lazy"].report().stats.num_drafted


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
