"""Constraints on the embedded model: the same text with and without drafts, and always legal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

import jsonschema
import pytest
from tests.harness import play
from tests.real.answers import Setting, at_each_temperature, compare, make_requests, open_setting

from headstart.types.constraint import Constraint, ConstraintKind, ThoughtMarks
from headstart.types.request import Request

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["child", "grown-up", "animal"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2}
CONSTRAINTS = (
    Constraint(kind=ConstraintKind.JSON_SCHEMA, text=json.dumps(PERSON)),
    Constraint(kind=ConstraintKind.JSON_SCHEMA, text=json.dumps(PEOPLE)),
    Constraint(kind=ConstraintKind.REGEX, text="([A-Z][a-z]{2,8} ){3}[0-9]{2}"),
    Constraint(kind=ConstraintKind.GBNF, text='root ::= ("- " [a-z ]+ "\\n"){2}'),
    Constraint(kind=ConstraintKind.JSON_OBJECT),
    Constraint(
        kind=ConstraintKind.JSON_SCHEMA,
        text=json.dumps(PERSON),
        thoughts=ThoughtMarks(b"", b"\n", is_open=True),
    ),
    Constraint(kind=ConstraintKind.LARK, text='start: "It is " NUM " o\'clock."\nNUM: /1?[0-9]/'),
    Constraint(kind=ConstraintKind.REGEX, text="[0-9]{3};", triggers=(b" the",)),
)
SAMPLE = (
    Setting("off", 0, 4),
    Setting("draft-model", 4, 1),
    Setting("ngram-simple,draft-model", 8, 4),
    Setting("auto", 16, 4),
)


def constrained(temperature: float, *, max_tokens: int) -> list[Request]:
    requests = make_requests(len(CONSTRAINTS), temperature, max_tokens=max_tokens)
    return [
        replace(r, constraint=constraint, sampling=replace(r.sampling, ignore_eos=False))
        for r, constraint in zip(requests, CONSTRAINTS, strict=True)
    ]


def test_a_constrained_text_is_identical_with_and_without_drafts() -> None:
    requests = at_each_temperature(partial(constrained, max_tokens=32))
    compared = list(compare(requests, SAMPLE))
    assert {c.setting: c.different for c in compared} == dict.fromkeys(SAMPLE, ())
    assert all(c.num_accepted for c in compared if c.setting.types != "off")


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_finished_text_satisfies_its_constraint(temperature: float) -> None:
    requests = constrained(temperature, max_tokens=120)
    scheduler = open_setting(Setting("ngram-simple", 16, 4))
    results = play(scheduler, requests)
    assert not any(results[r.request_id].error for r in requests)

    def text_of(request: Request) -> str:
        tokens = results[request.request_id].tokens
        return b"".join(map(scheduler.vocab.token_bytes, tokens)).decode()

    texts = [text_of(request) for request in requests]
    jsonschema.validate(json.loads(texts[0]), PERSON)
    jsonschema.validate(json.loads(texts[1]), PEOPLE)
    assert re.fullmatch("([A-Z][a-z]{2,8} ){3}[0-9]{2}", texts[2])
    jsonschema.validate(json.loads(texts[5].partition("\n")[2]), PERSON)
    assert re.fullmatch("It is 1?[0-9] o'clock.", texts[6])
    stats = results[requests[0].request_id].stats
    assert stats.by_speculator["grammar"].num_accepted > 5
