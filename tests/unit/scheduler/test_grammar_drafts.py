"""Drafts under a constraint: what is illegal is cut off, what must come is drafted for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.harness import AUTO, Answer, fixed, run, submit_all
from tests.planted import noted
from tests.unit.scheduler.constrained import (
    CONSTRAINTS,
    TOKENS,
    bytes_engine,
    check,
    expected,
    make_constrained,
    make_scheduler,
)

from headstart.config import SpeculationConfig
from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.state import GrammarState
from headstart.scheduler.offers import GRAMMAR, splice
from headstart.scheduler.slot_actions import end_thoughts
from headstart.speculators import Speculator
from headstart.speculators.draft_model import DraftModelSpeculator
from headstart.speculators.ngram_simple import NgramSimpleSpeculator
from headstart.text.vocabulary.draft_tokenizer import DraftBuilder, Preference
from headstart.types import Draft, DraftMode, DraftRequest
from headstart.types.constraint import (
    NO_LIMIT,
    Constraint,
    ConstraintKind,
    ThoughtLimit,
    ThoughtMarks,
)
from headstart.types.request import Request, SpeculativeParams, ThoughtsEnd

SCHEMA = CONSTRAINTS["json_schema"]


def state(text: bytes = b"", constraint: Constraint = SCHEMA) -> GrammarState:
    legality = Compiled(constraint, TOKENS).begin()
    for token in text:
        legality.read(token)
    return legality


def parts(legality: GrammarState, text: bytes, max_tokens: int = 99) -> list[tuple[str, bytes]]:
    draft = Draft(list(text), [0.5] * len(text), "copy")
    return [(p.speculator, bytes(p.tokens)) for p in splice(legality, draft, max_tokens)]


LAZY = Constraint(kind=ConstraintKind.REGEX, text="[0-9]+", triggers=(b">",))


@pytest.mark.parametrize(
    ("legality", "text", "expected"),
    [
        (  # what must come says the same as the draft and takes its place: its merit is its own
            state(),
            b'{"name": "Bob", "tags": []',
            [
                (GRAMMAR, b'{"name": "'),
                ("copy", b"B"),
                (GRAMMAR, b'ob", "tags": ['),
                ("copy", b"]"),
                (GRAMMAR, b', "age": '),
            ],
        ),
        (state(b'{"name": "Bob", "tags": [], "age": '), b"12x}", [("copy", b"12")]),
        (state(b'{"name": "'), b'Bill", "x"', [("copy", b"B"), (GRAMMAR, b'ob", "tags": [')]),
        (state(), b'{"nome": "Bob"', [(GRAMMAR, b'{"name": "')]),
        (state(b'{"name": "Bob", "tags": [], "age": 7'), b"}}}", [("copy", b"}")]),
        (state(constraint=LAZY), b"abc>12c", [("copy", b"abc>12")]),
        (state(constraint=LAZY), b"abc", [("copy", b"abc")]),
    ],
    ids=["all", "illegal", "wrong", "contradiction", "end", "behind a trigger", "without one"],
)
def test_a_draft_ends_at_its_first_illegal_token_and_what_must_come_is_inserted(
    legality: GrammarState, text: bytes, expected: list[tuple[str, bytes]]
) -> None:
    assert parts(legality, text) == expected


def test_no_more_is_drafted_than_there_is_room_for() -> None:
    for room in range(1, 30):
        drafted = parts(state(), b'{"name": "Bob", "tags": []', room)
        assert sum(len(text) for _, text in drafted) == min(room, 35)


def test_nothing_is_drafted_behind_the_end_of_the_turn() -> None:
    turn = Draft([*b"ab", 256, *b"ab"], [0.5] * 5, "copy")
    free = state(constraint=Constraint(kind=ConstraintKind.REGEX, text="[ab]*"))
    assert [list(p.tokens) for p in splice(free, turn, 9)] == [[*b"ab", 256]]


class Future(Speculator):
    """Drafts what will come, with its third token wrong."""

    name = "future"

    def __init__(self, texts: Sequence[list[int]]) -> None:
        self.texts = texts
        self.asked: list[list[int]] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(list(request.tokens), request.max_tokens) for request in requests]

    def _draft(self, known: list[int], max_tokens: int) -> Draft:
        text = next(text for text in self.texts if text[: len(known)] == known)
        tokens = text[len(known) : len(known) + max_tokens]
        tokens[2:3] = [token ^ 1 for token in tokens[2:3]]
        return Draft(tokens, [0.9] * len(tokens), self.name)


class FutureModel(Future):
    """The same as a model, which may continue what others drafted."""

    name = "future-model"
    is_model = True
    scores_are_probabilities = True


def answers_with(
    spec: SpeculationConfig, *drafters: type[Future], mode: DraftMode | None = None
) -> tuple[dict[str, Answer], int]:
    """Answers, and how many decodes they took."""
    engine = bytes_engine()
    requests = make_constrained(3, SCHEMA, 0.8)
    texts = [[*request.prompt, *expected(engine, request).tokens] for request in requests]
    scheduler = make_scheduler(engine, [cls(texts) for cls in drafters], spec)
    if mode is not None:
        requests = [replace(r, speculative=SpeculativeParams(mode=mode)) for r in requests]
    answers = run(scheduler, requests)
    check(engine, requests, answers)
    return answers, engine.num_decodes


def test_forced_tokens_are_counted_by_themselves_and_wrong_only_behind_others() -> None:
    for spec in (AUTO, fixed(8)):
        for drafters in ((Future,), (FutureModel,), (Future, FutureModel)):
            answers, _ = answers_with(spec, *drafters)
            for answer in answers.values():
                counts = answer.stats.by_speculator
                forced = counts[GRAMMAR]
                assert forced.num_accepted == answer.sources.count(GRAMMAR) > 20
                for start, num_drafted, num_right in forced.verified:
                    assert num_right == num_drafted or start > 0
                for cls in drafters:
                    own = counts[cls.name]
                    assert own.num_accepted == answer.sources.count(cls.name)


def test_a_constrained_text_takes_fewer_steps_than_it_has_tokens() -> None:
    answers, num_decodes = answers_with(AUTO, Future)
    assert num_decodes < max(len(answer.tokens) for answer in answers.values()) // 2


def test_with_speculation_off_nothing_is_drafted() -> None:
    answers, num_decodes = answers_with(AUTO, Future, mode=DraftMode.OFF)
    assert all(set(answer.sources) == {""} for answer in answers.values())
    assert num_decodes >= max(len(answer.tokens) for answer in answers.values())


def test_control_learns_constrained_text_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = bytes_engine()
    free, bound = make_constrained(2, None, 0.8)[0], make_constrained(2, SCHEMA, 0.8)[1]
    texts = [[*request.prompt, *expected(engine, request).tokens] for request in (free, bound)]
    for request, name in ((free, "future"), (bound, "future+grammar")):
        scheduler = make_scheduler(bytes_engine(), [Future(texts)], AUTO)
        labels = noted(monkeypatch, scheduler.drafting.controller._calibration, "record")
        run(scheduler, [request])
        assert {known for _, known, *_ in labels} == {name}


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("kind", ["json_schema", "gbnf", "lark", "list", "regex"])
def test_a_model_that_equals_the_target_is_right_under_a_constraint_too(kind, temperature) -> None:
    engine = bytes_engine()
    model = DraftModelSpeculator(bytes_engine())
    requests = make_constrained(3, CONSTRAINTS[kind], temperature)  # the fourth bans the end
    answers = run(make_scheduler(engine, [model]), requests)
    check(engine, requests, answers)
    drafts = [answer.stats.by_speculator["draft-model"] for answer in answers.values()]
    assert sum(d.num_drafted for d in drafts) > 5
    assert [d.num_accepted for d in drafts] == [d.num_drafted for d in drafts]


def test_a_draft_model_of_greedy_requests_picks_the_best_legal_token() -> None:
    with state(b'{"name": "').lookahead() as legality:
        assert legality.read_legal(b"An") == 2
        request = DraftRequest(0, [1], 9, legality=legality)
        builder = DraftBuilder(request, 9, Preference())
        logits = np.zeros(TOKENS.size, np.float32)
        logits[[ord("x"), ord("t"), ord("n")]] = 3.0, 2.0, 1.0
        assert builder.extend(logits) == ord("t")
        assert builder.extend(logits) == ord("o")
        assert builder.finish()[1][1] == 1.0
    mask = legality.legal_instead(ord("o"))  # whoever kept it changes nothing
    assert mask is not None
    assert not mask.any()


CLOSING = b" so: </t>"
LIMIT = ThoughtLimit(
    max_tokens=17, start=b"<t>", ends=(b"</t>",), closing=tuple(CLOSING), is_thinking=True
)


def thinking(temperature: float, constraint: Constraint | None = None) -> list[Request]:
    return [
        replace(request, thoughts=replace(LIMIT, max_tokens=17 + index))
        for index, request in enumerate(make_constrained(3, constraint, temperature))
    ]


def speculators() -> list[Speculator]:
    return [NgramSimpleSpeculator(), DraftModelSpeculator(bytes_engine())]


def answers(
    requests: Sequence[Request], drafts: Sequence[Speculator] = (), spec: SpeculationConfig = AUTO
) -> dict[str, Answer]:
    return run(make_scheduler(bytes_engine(), drafts, spec), requests)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("spec", [AUTO, fixed(6)], ids=["auto", "fixed"])
def test_limited_thoughts_are_the_same_with_and_without_drafts(temperature, spec) -> None:
    requests = thinking(temperature)
    plain, drafted = answers(requests), answers(requests, speculators(), spec)
    num_ended = 0
    for index, request in enumerate(requests):
        text = bytes(t for t in plain[request.request_id].tokens if t < 256)
        assert plain[request.request_id].tokens == drafted[request.request_id].tokens
        if len(text) > 17 + index:  # it did not end before
            assert 0 <= text[17 + index :].find(CLOSING) < 4  # at the end of a character
            num_ended += 1
    assert num_ended


def test_what_follows_the_thoughts_is_constrained_as_ever() -> None:
    number = Constraint(
        kind=ConstraintKind.REGEX,
        text="[0-9]{4}",
        thoughts=ThoughtMarks(b"<t>", b"</t>", is_open=True),
    )
    for request in (requests := thinking(1.0, number)):
        for drafts in ([], speculators()):
            answer = answers(requests, drafts)[request.request_id]
            assert bytes(answer.tokens).partition(CLOSING)[2].isdigit()


def test_the_end_of_the_thoughts_is_drafted_for_nothing() -> None:
    answer = answers(thinking(0.0)[:1], speculators(), fixed(16))["r0"]
    assert answer.stats.by_speculator[GRAMMAR].num_accepted >= len(CLOSING) - 1


def test_thoughts_end_on_demand_and_only_for_their_tenant() -> None:
    request = replace(thinking(0.8)[0], thoughts=replace(LIMIT, max_tokens=NO_LIMIT), namespace="a")
    scheduler = make_scheduler(bytes_engine(), speculators(), AUTO)
    submit_all(scheduler, [request], 3)
    end = ThoughtsEnd("c", request.request_id, "b")
    assert end_thoughts(end, scheduler.running) == "no active completion for this id"
    emitted = len(scheduler.running[0].tokens)
    assert end_thoughts(replace(end, namespace="a"), scheduler.running) == ""
    answer = run(scheduler)[request.request_id]
    assert CLOSING in bytes(token for token in answer.tokens if token < 256)
    assert len(scheduler.running) == 0 < emitted
