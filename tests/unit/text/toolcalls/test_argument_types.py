"""Arguments of all types, as templates write them, are read back as the schema has them."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from time import process_time

import pytest
from tests.unit.text.toolcalls.test_constraint import (
    OWN_FORMS,
    TEXT,
    accepts,
    calls_of,
    rules,
    tools_of,
    written,
)
from tests.unit.text.toolcalls.test_llama_server_parses import FAMILIES, reader_of
from tests.unit.text.toolcalls.test_parser import read

from headstart.text.toolcalls.argument_types import ToolSchema
from headstart.text.toolcalls.json_text import python_value
from headstart.types.errors import RequestError

ARGUMENTS = {
    "area": "90210", "flag": False, "grid": [[1, 2], [3], []], "note": None, "person": {
        "code": "007", "person": {"code": "1"}, "tags": ["2", "true"]}, "tags": [],
}  # fmt: skip
NAMED = tools_of(
    {
        "type": "object",
        "properties": {
            "area": {"type": ["string", "null"]},
            "flag": {"type": "boolean"},
            "grid": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            "note": {"type": ["string", "null"]},
            "person": {"$ref": "#/$defs/person"},
            "tags": {"$ref": "#/$defs/tags"},
        },
        "$defs": {
            "tags": {"type": "array", "items": {"type": "string"}},
            "person": {
                "type": "object",
                "properties": {
                    "code": {"type": "string"},
                    "person": {"$ref": "#/$defs/person"},
                    "tags": {"$ref": "#/$defs/tags"},
                },
            },
        },
    }
)


def test_a_quoted_text_may_contain_the_end_of_a_value():
    arguments = {"to": "x", "text": "a</param>\n<b>]] ]>"}
    parameters = {"properties": {key: {"type": "string"} for key in arguments}}
    tools = tools_of({"type": "object", **parameters, "required": ["to", "text"]}, "send")
    answer_format, text = written("openbmb-MiniCPM5-1B", ("send", arguments), tools=tools)
    call = text[text.rindex("<function name") : text.rindex("</function>") + len("</function>")]
    assert accepts(rules(tools).required(answer_format.calls), call)
    for pieces in ([text], list(text)):
        *_, call = read(answer_format, pieces, tools=tools).calls
        assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize("name", FAMILIES)
def test_arguments_of_all_types_are_read_as_the_schema_has_them(name):
    answer_format, text = written(name, ("f", ARGUMENTS), tools=NAMED)
    start = text.rindex("assistant") if name == "muse-glimmer" else 0
    text = text[start:].removeprefix("assistant")
    for pieces in ([text], list(text)):
        *_, call = read(answer_format, pieces, tools=NAMED).calls
        # MiniMax M3's template leaves out what is null
        assert {"note": None, **json.loads(call.arguments)} == ARGUMENTS


def parameter(name, value):
    return f"<parameter={name}>\n{value}\n</parameter>\n"


def element(name, value):
    return f"~<{name}>{value}~</{name}>".replace("~", "]<]minimax[>[")


@pytest.mark.parametrize(
    ("name", "written_as", "inner"),
    [("Qwen3-Coder", parameter, "7"), ("MiniMax-M3", element, element("item", 7) * 3)],
)
def test_a_schema_of_many_alternatives_takes_no_time_at_each_argument(name, written_as, inner):
    integers = {"items": {"$ref": "#/$defs/n"}, "type": "array"}
    tools = tools_of({
        "type": "object",
        "properties": {"a": {"anyOf": [integers, *({} for _ in range(100_000))]}},
        "$defs": {"n": {"enum": [*range(200_000)]}},
    })  # fmt: skip
    if name == "Qwen3-Coder":
        tools[0]["function"]["parameters"]["properties"]["a"]["anyOf"][0] = {"$ref": "#/$defs/n"}
    calls = calls_of(name)
    opening = calls.section_start + calls.call_start + calls.body.head.replace("{name}", "f")
    begin = process_time()
    [call] = read(reader_of(name)[1], [opening, written_as("a", inner) * 200], tools=tools).calls
    assert process_time() - begin < 3
    assert call.arguments.count("7") == 200 * inner.count("7")


def test_a_number_with_a_comma_is_no_list():
    assert python_value("1,000") == "1,000"
    assert python_value("(1, 0)") == (1, 0)


def test_elements_are_read_as_what_the_schema_names():
    item = {"type": "object", "properties": {"item": {"type": "string"}}}
    tools = tools_of({"type": "object", "properties": {"list": {"type": "array"}, "map": item}})
    arguments = {"list": ["1.5.5", {"a.b": "x", "acb": "y"}], "map": {"item": "7"}}
    answer_format, text = written("MiniMax-M3", ("f", arguments), tools=tools)
    *_, call = read(answer_format, [text], tools=tools).calls
    assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize(
    "reference",
    [
        "#/definitions/Record%3Cstring%2Cunknown%3E",
        "#/definitions/a~1b",
        "#/definitions/a~01b",
        "#/anyOf/1",
        "#/%61nyOf/1/allOf/0",
    ],
)
def test_a_reference_is_a_pointer_as_part_of_an_address(reference):
    number = {"type": "number"}
    names = ("Record<string,unknown>", "a/b", "a~1b")
    root = {"definitions": dict.fromkeys(names, number), "anyOf": [{}, {"allOf": [number]}]}
    assert ToolSchema(root).types_of({"$ref": reference}) == {"number"}


@pytest.mark.parametrize(
    "place", ["anyOf/1", "anyOf/-", "anyOf/-1", "anyOf/" + "1" * 5000, "type/0", "none/0"]
)
def test_a_reference_to_nothing_names_no_type(place):
    root = {"anyOf": [{"type": "string"}], "type": "object"}
    assert ToolSchema(root).types_of({"$ref": f"#/{place}"}) == set()


def nested(make, count):
    schema: dict[str, object] = TEXT
    for _ in range(count):
        schema = make(schema)
    return schema


@pytest.mark.parametrize("name", OWN_FORMS)
@pytest.mark.parametrize(
    "parameters",
    [
        # each with a copy of what they share, if the limit were asked for at the end only
        {
            "properties": {f"a{at}": {"$ref": "#/$defs/n", "title": f"{at}"} for at in range(200)},
            "$defs": {"n": {"enum": [*range(10_000)]}},
        },
        {"properties": {"a": nested(lambda one: {"anyOf": [one]}, 400)}},
        {
            "properties": {"a": {"$ref": "#/$defs/0"}},
            "$defs": {f"{at}": {"$ref": f"#/$defs/{at + 1}"} for at in range(600)} | {"600": TEXT},
        },
        nested(
            lambda one: {
                "type": ["object", "object"], "properties": {"a": one}, "required": ["a"],
            }, 16,
        ),
        {"properties": {"a": {"type": ["string"] + ["object"] * 9000, "title": "x" * 50_000}}},
    ],
)  # fmt: skip
def test_a_schema_that_multiplies_takes_little_time_and_memory(name, parameters):
    begin = process_time()
    tracemalloc.start()
    with contextlib.suppress(RequestError):
        rules(tools_of({"type": "object", **parameters})).required(calls_of(name))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert process_time() - begin < 10
