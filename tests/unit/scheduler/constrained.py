"""Constrained requests over fakes, and what each must answer, one token at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.harness import Answer, Clock, fixed, play

from headstart.config import SchedulerConfig, SpeculationConfig
from headstart.control.controller import Controller
from headstart.sampling import SamplingParams
from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.compiler import GrammarCompiler
from headstart.sampling.grammar.tokens import GrammarTokens
from headstart.sampling.sampler import Sampler
from headstart.scheduler.drafting import Drafting, no_clock
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.scheduler import Scheduler
from headstart.speculators import Speculator
from headstart.testing import ByteVocab, FakeEngine
from headstart.types.constraint import Constraint, ConstraintKind, ThoughtMarks
from headstart.types.request import Request

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
        kind=ConstraintKind.GBNF,
        text='root ::= item+\nitem ::= "- " [a-c]+ ("\\n" | ";\\n")\n',
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
        kind=ConstraintKind.JSON_SCHEMA,
        text=json.dumps(PERSON),
        triggers=(b"a", b"{", b"!"),
        allows_space=True,
    ),
    "thoughts before": Constraint(
        kind=ConstraintKind.JSON_SCHEMA,
        text=json.dumps(PERSON),
        thoughts=ThoughtMarks(b"s", b"e", is_open=False, opening=tuple(b"s")),
        allows_space=True,
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
    *,
    parallel: int = 4,
) -> Scheduler:
    clock = Clock()
    guarded = [GuardedSpeculator(s, engine.vocab_size, clock) for s in speculators]
    drafting = Drafting(guarded, spec or fixed(6), controller or Controller(), clock=no_clock)
    config = SchedulerConfig(parallel=parallel)
    return Scheduler(engine, VOCAB, drafting, config, clock, COMPILER)


def expected(engine: FakeEngine, request: Request) -> list[int]:
    """The rule, token by token."""
    sampler = Sampler(request.sampling, engine, VOCAB.eog_ids)
    constraint = request.constraint
    state = Compiled(constraint, TOKENS).begin() if constraint else None
    tokens, emitted = list(request.prompt), list[int]()
    while len(emitted) < (request.max_tokens or 100):
        logits = engine.logits_after(tokens)
        token = sampler.sample(logits, len(tokens))
        if state is not None:
            legal = state.legal_mask()
            if not legal[token]:
                token = sampler.sample(logits, len(tokens), legal)
            state.read(token)
        tokens.append(token)
        emitted.append(token)
        if token == EOS and not request.sampling.ignore_eos:
            break
        if state is not None and state.is_over:
            break
    return emitted


def check(engine: FakeEngine, requests: Sequence[Request], answers: dict[str, Answer]) -> None:
    for request in requests:
        got, right = answers[request.request_id], expected(engine, request)
        if got.tokens != right:
            raise AssertionError(
                f"{request.request_id}: {bytes(t for t in got.tokens if t < 256)!r} instead of "
                f"{bytes(t for t in right if t < 256)!r}; {got.error}"
            )


def run(scheduler: Scheduler, requests: Sequence[Request]) -> dict[str, Answer]:
    """Like `play`; no speculator may have failed on the way."""
    answers = play(scheduler, requests)
    for speculator in scheduler.drafting.speculators.values():
        if speculator.failure:
            raise AssertionError(speculator.failure)
    return answers
