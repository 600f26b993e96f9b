"""Constrained requests over fakes, and what each must answer, one token at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests import harness
from tests.harness import Answer, fixed

from headstart.config import SpeculationConfig
from headstart.control.controller import Controller
from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.compiler import GrammarCompiler
from headstart.sampling.grammar.triggers import GrammarTokens
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators import Speculator
from headstart.testing import ByteVocab, FakeEngine
from headstart.types.constraint import Constraint, ConstraintKind, ThoughtMarks
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

EOS = 256
VOCAB = ByteVocab()
TOKENS = GrammarTokens.read(VOCAB)
COMPILER = GrammarCompiler(VOCAB)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bob", "Anton"]},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "tags", "age"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "json_object": Constraint(kind=ConstraintKind.JSON_OBJECT),
    "json_schema": Constraint(kind=ConstraintKind.JSON_SCHEMA, text=json.dumps(PERSON)),
    "gbnf": Constraint(
        kind=ConstraintKind.GBNF, text='root ::= item+\nitem ::= "- " [a-c]+ ("\\n" | ";\\n")\n'
    ),
    "lark": Constraint(
        kind=ConstraintKind.LARK, text='start: "x" ("=" NUM "," )+ "end"\nNUM: /[0-9]{1,3}/'
    ),
    "list": Constraint(
        kind=ConstraintKind.JSON_SCHEMA,
        text=json.dumps({"type": "array", "minItems": 3, "items": PERSON}),
    ),
    "regex": Constraint(kind=ConstraintKind.REGEX, text="(ab|cd|abc)+[0-9]{4}-end"),
    "behind a trigger": Constraint(
        kind=ConstraintKind.JSON_SCHEMA, text=json.dumps(PERSON), triggers=(b"a", b"{", b"!")
    ),
    "thoughts before": Constraint(
        kind=ConstraintKind.JSON_SCHEMA,
        text=json.dumps(PERSON),
        thoughts=ThoughtMarks(b"s", b"e", is_open=False, opening=tuple(b"s")),
    ),
    "no trigger in thoughts": Constraint(
        kind=ConstraintKind.REGEX,
        text="[0-9]{3};",
        triggers=(b"a", b"b", b"c", b"{", b"!"),
        thoughts=ThoughtMarks(b"s", b"e", is_open=True),
    ),
    "with its trigger": Constraint(
        kind=ConstraintKind.GBNF,
        text='root ::= [a-h] "(" [0-9]+ ")"',
        triggers=(b"a", b"b", b"c"),
        includes_trigger=True,
    ),
}


def bytes_engine(order: int = 2, **options: Any) -> FakeEngine:
    engine = FakeEngine(VOCAB.size, order, **{"num_cells": 4096, **options})
    engine.sharpness = 3.0
    return engine


def make_constrained(
    num: int, constraint: Constraint | None, temperature: float, *, max_tokens: int = 48
) -> list[Request]:
    requests = []
    for index in range(num):
        sampling = SamplingParams(
            temperature=temperature,
            seed=index,
            top_k=(0, 12, 40)[index % 3],
            ignore_eos=index % 4 == 3,
        )
        prompt = [*b"some prompt ", 97 + index, *b' {"name": "Ann", "tags": ["red"']
        requests.append(
            Request(
                request_id=f"r{index}",
                prompt=prompt,
                sampling=sampling,
                max_tokens=max_tokens,
                constraint=constraint,
            )
        )
    return requests


def make_scheduler(
    engine: FakeEngine,
    speculators: Sequence[Speculator] = (),
    spec: SpeculationConfig | None = None,
    controller: Controller | None = None,
    **limits: int,
) -> Scheduler:
    made = harness.make_scheduler(
        engine, speculators, spec or fixed(6), controller, VOCAB, **limits
    )
    made.compiling.compiler = COMPILER
    return made


def expected(engine: FakeEngine, request: Request) -> Answer:
    """The rule, token by token."""
    constraint = request.constraint
    state = Compiled(constraint, TOKENS).begin() if constraint else None
    return harness.answer(engine, request, VOCAB, state)


check = partial(harness.check, rule=expected)
