"""Compiling: off the caller's thread, once per constraint, within limits that an error names."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tests.planted import noted
from tests.unit.sampling.grammar.test_state import TOKENS, begin, constraint

from headstart.sampling.grammar import compiled, compiler
from headstart.sampling.grammar import sandbox as sandbox_module
from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.compiler import MAX_CACHED, GrammarCompiler
from headstart.sampling.grammar.forcing import MOST_BYTES, schema_may_force_much
from headstart.sampling.grammar.sandbox import Sandbox
from headstart.sampling.grammar.source import grammar_text
from headstart.structures.system import (
    LOW_PRIORITY,
    resident_bytes,
    start_threads,
)
from headstart.testing import ByteVocab
from headstart.types.constraint import MAX_TEXT_BYTES, Constraint, ConstraintKind
from headstart.types.errors import CapacityError, RequestError
from headstart.types.request import Request
from headstart.types.sampling_params import LogitBias, SamplingParams


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


WIDE = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5000)}}
HOSTILE: list[tuple[str, Any, str]] = [
    ("json_schema", nested(200), "deeper than 128 levels"),
    ("json_schema", nested(50_000), "deeper than 128 levels"),
    ("json_schema", WIDE, "number of symbols.*30000"),
    (
        "json_schema",
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(400)}},
        r"1599 items; max is 1000",
    ),
    (
        "json_schema",
        {
            "allOf": [
                {
                    "anyOf": [
                        {"type": "object", "required": [f"p{i}{j}"], "properties": {f"p{i}{j}": {}}}
                        for j in range(4)
                    ]
                }
                for i in range(8)
            ]
        },
        "too large",
    ),
    ("json_schema", "{", "the JSON schema cannot be used: .*(EOF|expected)"),
    ("json_schema", {"type": "integer", "multipleOf": 99999999977}, "too many digits"),
    ("regex", "(" * 5000 + "a" + ")" * 5000, "nested parentheses"),
    ("regex", "[a", "unclosed"),
    ("lark", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000, "too deeply nested"),
    ("lark", "start: a\na: b", "the Lark grammar cannot be used: .*unknown name"),
    ("lark", 'start: a\na[max_tokens=5]: "x"', "max_tokens is not supported"),
    ("lark", 'start: a\na[capture, temperature=0.5]: "x"', "temperature is not supported"),
    ("gbnf", 'root ::= ("a"', "the GBNF grammar cannot be used: Expected"),
    ("gbnf", "root ::= other", "'other' not found"),
    ("gbnf", 'x ::= "a"', "root"),
    ("gbnf", "root ::= " + "(" * 4000 + '"a"' + ")" * 4000, "nested too deep"),
    ("gbnf", 'root ::= "' + "a" * 2**14 + '"', "at most 16384"),
]


@pytest.mark.parametrize(("kind", "text", "says"), HOSTILE)
def test_what_cannot_be_compiled_is_refused_soon_and_says_why(kind, text, says) -> None:
    started = time.monotonic()
    with pytest.raises(RequestError, match=says) as error:
        begin(kind, text)
    assert time.monotonic() - started < 10.0
    assert len(str(error.value)) < 500
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", {"enum": [f"value {i}" for i in range(20_000)]}),
        ("json_schema", {"type": "array", "items": {"type": "string"}, "minItems": 1_000_000}),
        ("json_schema", {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}),
        ("regex", "(.*a){20}"),
        ("regex", "(a|b)*a(a|b){20}"),
        ("lark", 'start: s{1000000}\ns: "a" | "b"'),
        ("lark", 'start: "a" | b\nb' + " " * 200_000 + ': "b"'),
        ("lark", "start: " + '"a" | ' * 9_000 + '"b"'),
    ],
)
def test_what_only_looks_expensive_is_taken(kind: str, text: Any) -> None:
    assert begin(kind, text).legal_mask().nonzero()[0].size


def test_a_constraint_is_compiled_once() -> None:
    one = GrammarCompiler(ByteVocab())
    first = one.compile(constraint("regex", "a"))
    assert one.compile(constraint("regex", "a")) is first
    assert one.compile(constraint("regex", "b")) is not first
    for number in range(MAX_CACHED):
        one.compile(constraint("regex", f"c{number}"))
    assert one.compile(constraint("regex", "a")) is not first


@pytest.fixture(scope="module")
def shared() -> GrammarCompiler:
    """Its process, which gives way to all others, has more time: other programs may be busy."""
    one = GrammarCompiler(ByteVocab())
    one._idle.append(Sandbox(TOKENS.table, 60.0))
    return one


ENDLESS = {
    "allOf": [
        *({"multipleOf": number} for number in (97, 89, 83)),
        {"multipleOf": 79, "type": "integer"},
    ]
}


@pytest.mark.parametrize(
    ("seconds", "num_bytes", "says"),
    [(0.3, 1 << 30, r"took longer than 0\.3 s"), (60.0, 24 << 20, "took over 24 MiB")],
)
def test_what_never_ends_to_compile_is_ended_and_the_next_one_compiled(seconds, num_bytes, says):
    sandbox = Sandbox(TOKENS.table, seconds, num_bytes)
    with pytest.raises(RequestError, match=says):
        sandbox.compile(constraint("json_schema", ENDLESS))
    assert sandbox.compile(constraint("regex", "ab?"))["num_bytes"] < 8 << 20
    sandbox.close()


IN_A_FORK = (
    "import os, time; from headstart.structures.system import run_limited; "
    "print(run_limited(lambda: (print(os.nice(0), flush=True), time.sleep(60)), 0.1, 1 << 30))"
)


@pytest.mark.skipif(sys.platform != "linux", reason="a thread's niceness is Linux's")
def test_a_constraint_has_the_low_priority_of_threads_and_none_below_it() -> None:
    """At the lowest one, decodes that use all cores left it next to nothing."""
    start = partial(subprocess.check_output, [sys.executable, "-c", IN_A_FORK], text=True)
    niceness, ended_by = start_threads("x", low_priority=True).submit(start).result().split()
    assert int(niceness) == min(19, os.nice(0) + LOW_PRIORITY)
    assert ended_by == "wall", "sleeping takes no processor time"


def test_what_gets_no_processor_time_is_not_called_too_slow(monkeypatch) -> None:
    monkeypatch.setattr(sandbox_module, "run_limited", lambda *_: "wall")
    asked = pickle.dumps(TOKENS.table) + pickle.dumps(constraint("regex", "a"))
    said, sandbox = io.BytesIO(), Sandbox(TOKENS.table)
    sandbox_module._serve(io.BufferedReader(io.BytesIO(asked)), said, 10.0, 1)
    sandbox.close()
    sandbox._process = SimpleNamespace(stdin=io.BytesIO(), stdout=io.BytesIO(said.getvalue()))
    with pytest.raises(CapacityError, match="regex was not compiled within 120 s, because the pro"):
        sandbox.compile(constraint("regex", "a"))


def test_what_is_refused_takes_no_memory_here(shared: GrammarCompiler) -> None:
    before = resident_bytes()
    for number in range(4):
        text = f"(x{{900}}){{1000}}[{number}"
        with pytest.raises(RequestError, match="regex cannot be used"):
            shared.compile(constraint("regex", text)).result(60)
    assert resident_bytes() - before < 16 << 20


@pytest.mark.parametrize(
    ("kind", "text", "opening"),
    [
        ("regex", "x{900}{1000}", b""),
        ("regex", "(a|b)x{900}{1000}", b"a"),
        ("lark", 'start: ("a"|"b") s{9000}\ns: "' + "x" * 999 + '"', b"b"),
        ("json_schema", {"enum": ["a" + "x" * 200_000, "b" + "x" * 200_000]}, b'"a'),
    ],
)
def test_a_long_text_that_must_follow_is_not_looked_for(shared, kind, text, opening) -> None:
    """Finding it holds the interpreter: seconds for a million bytes."""
    state = shared.compile(constraint(kind, text)).result(60).begin()
    for byte in opening:
        state.read(byte)
    assert not state.forced()
    assert state.legal_mask().nonzero()[0].tolist() == [ord("x")]


@pytest.mark.parametrize("name", ["enum", "const", "x"])
def test_references_multiply_a_schema_whatever_its_properties_are_called(name: str) -> None:
    definitions: dict[str, Any] = {"0": {"const": "x" * 1000}}
    for level in range(1, 12):
        below = {"$ref": f"#/$defs/{level - 1}"}
        definitions[f"{level}"] = {"properties": {name: {"items": [below] * 2}}}
    assert schema_may_force_much({"$defs": definitions, "$ref": "#/$defs/11"})


@pytest.mark.parametrize("reference", ["#/$defs/%64", "#/$defs/a~1b", "#d", "http://x/d", "#title"])
def test_a_reference_that_is_found_in_another_way_may_force_much(reference: str) -> None:
    definitions = {"d": {"$anchor": "d", "const": 7}, "a~1b": {"const": 7}, "a/b": {"const": 8}}
    assert schema_may_force_much({"$ref": reference, "$defs": definitions, "title": "an anchor"})


def test_references_below_an_address_of_their_own_may_force_much() -> None:
    definitions = {"x": {"const": 7}, "y": {"$id": "http://x/y", "$ref": "#/$defs/x"}}
    assert schema_may_force_much({"$ref": "#/$defs/y", "$defs": definitions})
    whole = {"$id": "http://x/", "$ref": "#/$defs/x", "$defs": definitions}
    assert not schema_may_force_much(whole)


def test_a_short_text_that_must_follow_is_found(shared: GrammarCompiler) -> None:
    state = shared.compile(constraint("regex", "x{20}(a|b)")).result(60).begin()
    assert len(state.forced()) == 20


def test_compiled_constraints_are_kept_up_to_a_number_of_bytes(shared, monkeypatch) -> None:
    large = {"enum": [f"value {number}" for number in range(20_000)]}
    first = shared.compile(constraint("json_schema", large))
    assert first.result(60).num_bytes > 1 << 20
    monkeypatch.setattr(compiler, "MAX_CACHED_BYTES", 1 << 20)
    shared.compile(constraint("regex", "abc")).result(60)
    assert shared.cached(constraint("json_schema", large)) is None
    assert shared.cached(constraint("regex", "abc")) is not None


def test_a_sandbox_that_was_ended_is_started_again(shared: GrammarCompiler) -> None:
    shared.compile(constraint("regex", "a1")).result(60)
    for sandbox in shared._idle:
        sandbox._process.kill()
        sandbox._process.wait()
    assert shared.compile(constraint("regex", "a2")).result(60).begin().allows(ord("a"))


def test_answers_of_one_constraint_do_not_know_of_each_other() -> None:
    compiled = Compiled(constraint("regex", "ab|cd"), TOKENS)
    one, other = compiled.begin(), compiled.begin()
    one.read(ord("a"))
    assert other.allows(ord("c"))
    assert not one.allows(ord("c"))


def test_nothing_is_compiled_in_the_caller_s_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def note(one: Compiled, text: str) -> tuple[str, str]:
        return one.constraint.text, threading.current_thread().name

    calls = noted(monkeypatch, Compiled, "_compile", note=note)
    GrammarCompiler(ByteVocab()).compile(constraint("regex", "once")).result(60)
    # other tests may have constraints that are still compiled
    (thread,) = [name for text, name in calls if text == "once"]
    assert thread != threading.current_thread().name


def test_what_takes_the_interpreter_is_done_in_the_sandbox(monkeypatch, shared: GrammarCompiler):
    """A search for options in 20 kB of brackets took it for 6 s, from the engine's loop too."""
    monkeypatch.setattr(compiled, "grammar_text", None)
    text = 'start: "a" | "b"\n// ' + "[" * 100_000
    assert shared.compile(constraint("lark", text)).result(60).begin().allows(ord("b"))


@pytest.mark.skipif(sys.platform != "linux", reason="a thread's niceness is Linux's")
def test_compiling_gives_way_to_the_model_s_threads() -> None:
    one = GrammarCompiler(ByteVocab())
    own = os.getpriority(os.PRIO_PROCESS, 0)
    lowered = one._executor.submit(os.getpriority, os.PRIO_PROCESS, 0).result(60)
    assert lowered == min(19, own + LOW_PRIORITY)
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


DOUBLED = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(15)) + '\nr15: "abcdefgh"'
DEFINITIONS = {
    f"d{i}": {
        "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}, "b": {"$ref": f"#/$defs/d{i + 1}"}},
        "required": ["a", "b"],
        "type": "object",
    }
    for i in range(14)
} | {"d14": {"const": "abcdefgh"}}
CHOICE = {
    "type": "object",
    "properties": {"q": {"type": "boolean"}, "z": {"$ref": "#/$defs/d0"}},
    "required": ["q", "z"],
    "$defs": DEFINITIONS,
}
TOOL = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "A city. " * 300}},
    "required": ["city"],
}


@pytest.mark.parametrize(
    ("kind", "text", "forces"),
    [
        ("lark", f'start: "x" r0 | "y" r0\n{DOUBLED}', False),
        ("lark", 'start: x\nx: "(" x "abc" | "y"', False),  # "abc" for each bracket
        ("lark", 'start: ("x" | "y") r{99}\nr: "' + "a" * 100 + '"', False),
        ("lark", 'start: "key: " WORD ("," WORD)*\nWORD: /[a-z]+/ | "a|b"', True),
        ("lark", f"start: %json {json.dumps(TOOL)}", True),  # as tool calls are demanded
        ("lark", f"start: %json {json.dumps(CHOICE)}", False),
        ("lark", f"start: body{{99}}\nbody: %json {json.dumps(TOOL)}", False),
        ("lark", f'start: "%json " r0 "x" | "y"\n{DOUBLED}', False),
        ("lark", 'start: %json {"type": "object"', False),  # malformed
        ("lark", "start: %regex {}", False),
        ("gbnf", 'root ::= "key: " word\nword ::= [a-z]+', True),
        ("json_schema", CHOICE, False),
        ("json_schema", {"type": "object", "properties": {"a": {"$ref": "#"}}}, True),
    ],
)
def test_texts_that_rules_multiply_are_not_forced(kind: str, text: Any, forces: bool) -> None:
    wanted = constraint(kind, text)
    assert ('"no_forcing": true' not in grammar_text(wanted).replace("\\", "")) == forces


def test_no_step_computes_a_long_forced_text() -> None:
    state = begin("lark", f'start: "x" r0 | "y" r0\n{DOUBLED}')
    state.read(ord("x"))
    assert len(state.forced()) <= MOST_BYTES


def test_a_request_with_a_constraint_crosses_the_process_border() -> None:
    constraint = Constraint(kind=ConstraintKind.JSON_SCHEMA, text="{}", triggers=(b"</think>",))
    sampling = SamplingParams(logit_bias=LogitBias({}))
    request = Request(request_id="1", prompt=[1], sampling=sampling, constraint=constraint)
    assert pickle.loads(pickle.dumps(request)) == request


def test_a_constraint_that_is_too_long_is_refused_with_both_sizes() -> None:
    with pytest.raises(RequestError, match=rf"{MAX_TEXT_BYTES + 1} bytes.*{MAX_TEXT_BYTES}"):
        Constraint(kind=ConstraintKind.REGEX, text="a" * (MAX_TEXT_BYTES + 1))


@pytest.mark.parametrize("trigger", [b"", b"a" * 257])
def test_a_trigger_has_a_length(trigger: bytes) -> None:
    with pytest.raises(RequestError, match=f"{len(trigger)} bytes"):
        Constraint(kind=ConstraintKind.JSON_OBJECT, triggers=(trigger,))
