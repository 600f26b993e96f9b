"""Compiling: off the caller's thread, once per constraint, within limits that an error names."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import pytest
from tests.unit.grammar.test_state import TOKENS, begin, constraint

from headstart.sampling.grammar import compiler
from headstart.sampling.grammar.compiler import MAX_CACHED, Compiled, GrammarCompiler
from headstart.sampling.grammar.source import grammar_text
from headstart.testing import ByteVocab
from headstart.types.constraint import Constraint
from headstart.types.errors import InvalidParameterError


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
def test_what_cannot_be_compiled_is_refused_soon_and_says_why(
    kind: str, text: Any, says: str
) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidParameterError, match=says) as error:
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
    one.close()


def test_answers_of_one_constraint_do_not_know_of_each_other() -> None:
    compiled = Compiled(constraint("regex", "ab|cd"), TOKENS)
    one, other = compiled.begin(), compiled.begin()
    one.read(ord("a"))
    assert other.allows(ord("c"))
    assert not one.allows(ord("c"))


def test_nothing_is_compiled_in_the_caller_s_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def text(_: object) -> str:
        threads.append(threading.current_thread())
        return json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]})

    monkeypatch.setattr(compiler, "grammar_text", text)
    one = GrammarCompiler(ByteVocab())
    one.compile(constraint("regex", "a")).result(60)
    assert threading.current_thread() not in threads
    assert len(threads) == 1
    one.close()


def test_what_nobody_waits_for_is_not_compiled_and_can_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_go_on, compiled = threading.Event(), []

    def text(wanted: Constraint) -> str:
        may_go_on.wait(60)
        compiled.append(wanted.text)
        return grammar_text(wanted)

    monkeypatch.setattr(compiler, "grammar_text", text)
    one = GrammarCompiler(ByteVocab())
    texts = [constraint("regex", letter) for letter in "abc"]
    futures = [one.compile(wanted) for wanted in texts]
    for wanted, future in list(zip(texts, futures, strict=True))[1:]:
        one.abandon(wanted, future)
    again = one.compile(texts[2])
    may_go_on.set()
    assert again.result(60).constraint == texts[2]
    assert compiled == ["a", "c"]
    assert futures[1].cancelled()
    one.close()


@pytest.mark.skipif(sys.platform != "linux", reason="a thread's niceness is Linux's")
def test_compiling_gives_way_to_the_model_s_threads() -> None:
    one = GrammarCompiler(ByteVocab())
    own = os.getpriority(os.PRIO_PROCESS, 0)
    lowered = one._executor.submit(os.getpriority, os.PRIO_PROCESS, 0).result(60)
    assert lowered == min(19, own + compiler.LOW_PRIORITY)
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    one.close()
