"""JSON schema, keyword by keyword: supported, refused by name, or an annotation.

The table of docs/structured-output.md is the same.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.sampling.grammar.test_state import EOS, TOKENS, begin

from headstart.sampling.sampler import Sampler
from headstart.sampling.verify import emit
from headstart.testing import FakeEngine
from headstart.types.errors import RequestError
from headstart.types.sampling_params import SamplingParams

DOCS = Path(__file__).parents[4] / "docs" / "structured-output.md"

# keyword -> schema, a value that satisfies it, and one that does not
SUPPORTED: dict[str, tuple[Any, Any, Any]] = {
    "type": ({"type": ["integer", "null"]}, None, "a"),
    "enum": ({"enum": ["a", 1]}, 1, 2),
    "const": ({"const": {"a": [1]}}, {"a": [1]}, {"a": [2]}),
    "anyOf": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "a", 1),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, 4, 6),
    "oneOf": ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, 1, None),
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, 1, "a"),
    "definitions": ({"$ref": "#/definitions/a", "definitions": {"a": {"const": 1}}}, 1, 2),
    "properties": (
        {"type": "object", "properties": {"a": {"type": "null"}}},
        {"a": None},
        {"a": 1},
    ),
    "required": ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, {"a": 1}, {}),
    "additionalProperties": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        {"a": 1},
        {"b": 1},
    ),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^a": {"type": "null"}}},
        {"ab": None},
        {"ab": 1},
    ),
    "minProperties": ({"type": "object", "minProperties": 1}, {"a": 1}, {}),
    "maxProperties": ({"type": "object", "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}),
    "items": ({"type": "array", "items": {"type": "null"}}, [None], [1]),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "null"}]}, [None, 1], [1]),
    "additionalItems": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [{"type": "null"}],
            "additionalItems": False,
        },
        [None],
        [None, 1],
    ),
    "minItems": ({"type": "array", "minItems": 2}, [1, 2], [1]),
    "maxItems": ({"type": "array", "maxItems": 1}, [1], [1, 2]),
    "minLength": ({"type": "string", "minLength": 2}, "ab", "a"),
    "maxLength": ({"type": "string", "maxLength": 2}, "ab", "abc"),
    "pattern": ({"type": "string", "pattern": "^a+$"}, "aa", "ab"),
    "format": ({"type": "string", "format": "date"}, "2026-11-21", "2026-13-21"),
    "minimum": ({"type": "integer", "minimum": 3}, 3, 2),
    "maximum": ({"type": "number", "maximum": 3}, 2.5, 3.5),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 3}, 4, 3),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 3}, 2.5, 3),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, 15, 12),
}
REFUSED: dict[str, Any] = {
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}},
    "then": {"then": {"type": "string"}},
    "else": {"else": {"type": "string"}},
    "dependentSchemas": {"dependentSchemas": {"a": {}}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "dependencies": {"dependencies": {"a": ["b"]}},
    "contains": {"contains": {"type": "null"}},
    "minContains": {"minContains": 1},
    "maxContains": {"maxContains": 1},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "unevaluatedItems": {"unevaluatedItems": False},
    "propertyNames": {"propertyNames": {"maxLength": 3}},
    "unevaluatedProperties": {"unevaluatedProperties": False},
    "$dynamicRef": {"$dynamicRef": "#a"},
    "$recursiveRef": {"$recursiveRef": "#"},
}
ANNOTATIONS: dict[str, Any] = {
    "$defs": {},
    "title": "a",
    "description": "a",
    "default": 3,
    "examples": [3],
    "deprecated": True,
    "readOnly": True,
    "writeOnly": True,
    "$comment": "a",
    "$id": "http://localhost/a",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$anchor": "a",
    "contentEncoding": "base64",
    "contentMediaType": "text/plain",
    "contentSchema": {},
}
PARTLY = [
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    (
        {"type": "object", "patternProperties": {"^a": {}, "^ab": {"type": "null"}}},
        "patternProperty",
    ),
    ({"type": "object", "properties": {"a": {}}, "minProperties": 2}, "maxProperties"),
    ({"type": "string", "pattern": "^(?=a)a"}, "look-around"),
    ({"type": "string", "pattern": r"^(a)\1$"}, "backreferences"),
    ({"type": "string", "format": "iri"}, "iri"),
    ({"$ref": "http://localhost/other.json"}, "other.json"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "Unsatisfiable"),
    ({"type": "wrong"}, "wrong"),
]


def accepts(schema: Any, value: Any) -> bool:
    """Whether the value, as Python writes it, is a whole text of this schema."""
    state = begin("json_schema", schema)
    for token in json.dumps(value).encode():
        if not state.allows(token):
            return False
        state.read(token)
    return state.is_over or state.allows(EOS)


@pytest.mark.parametrize("keyword", SUPPORTED)
def test_a_supported_keyword_means_what_json_schema_says(keyword: str) -> None:
    schema, right, wrong = SUPPORTED[keyword]
    assert accepts(schema, right)
    assert not accepts(schema, wrong)
    jsonschema.validate(right, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("keyword", REFUSED)
def test_what_is_not_supported_is_refused_by_name(keyword: str) -> None:
    with pytest.raises(RequestError, match=re.escape(f'"{keyword}"')):
        begin("json_schema", REFUSED[keyword])


@pytest.mark.parametrize("keyword", ANNOTATIONS)
def test_an_annotation_does_not_change_the_text(keyword: str) -> None:
    noted = begin("json_schema", {"enum": ["a", 1], keyword: ANNOTATIONS[keyword]})
    plain = begin("json_schema", {"enum": ["a", 1]})
    assert noted.legal_mask().nonzero()[0].tolist() == plain.legal_mask().nonzero()[0].tolist()


@pytest.mark.parametrize(("schema", "says"), PARTLY)
def test_what_is_partly_supported_is_refused_where_it_is_not(schema: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        begin("json_schema", schema)


@pytest.mark.parametrize("name", ["allOf", "default", "enum", "properties", "$ref"])
def test_listed_properties_are_all_there_are_also_below_one_with_the_name_of_a_keyword(name):
    listed = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    schema = {"type": "object", "properties": {name: listed}, "required": [name]}
    assert accepts(schema, {name: {"a": 1}})
    assert not accepts(schema, {name: {"a": 1, "b": 2}})
    assert not accepts(schema, {name: {"a": 1}, "b": 2})


def test_listed_properties_are_all_there_are_unless_the_schema_says_otherwise() -> None:
    listed = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert not accepts(listed, {"a": 1, "b": 2})
    assert accepts(listed | {"additionalProperties": True}, {"a": 1, "b": 2})
    assert not accepts({"items": listed}, [{"a": 1, "b": 2}])
    assert accepts({"type": "object"}, {"b": 2})
    # a name is no keyword, and a value no schema
    assert accepts(
        {"type": "object", "properties": {"properties": {"const": 1}}}, {"properties": 1}
    )
    assert accepts({"const": {"properties": {}}}, {"properties": {}})


def test_merged_schemas_keep_each_other_s_properties() -> None:
    one = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    other = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
    merged = [
        {"allOf": [one, other]},
        one | {"$ref": "#/$defs/other", "$defs": {"other": other}},
        one | {"anyOf": [other]},
    ]
    for schema in merged:
        assert accepts(schema, {"a": 1, "b": 2})
    assert accepts(one | {"required": ["a", "z"]}, {"a": 1, "z": 2})


def test_the_table_of_the_docs_is_this_one() -> None:
    documented: dict[str, str] = {}
    section = DOCS.read_text("utf-8").split("## JSON schema")[1].split("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            keywords, meaning = line.strip("| ").split(" | ")
            documented |= dict.fromkeys(re.findall(r"`([^`]+)`", keywords), meaning)
    refused = {name for name, meaning in documented.items() if meaning == "refused"}
    annotations = {
        name for name, meaning in documented.items() if meaning.startswith("annotations")
    }
    assert refused == REFUSED.keys()
    assert annotations == ANNOTATIONS.keys() - {"$defs"}
    assert documented.keys() - refused - annotations == SUPPORTED.keys() | {"$defs"}


NAMES = st.sampled_from(["a", "b", "name", "id"])
LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-200, 200),
        st.integers(0, 300),
    ),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 3)),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.text(max_size=3), min_size=1, max_size=3)
    ),
    st.sampled_from(
        [{"type": "string", "format": "date"}, {"type": "string", "pattern": "^[ab]{2}$"}]
    ),
)


def _object(properties: dict[str, Any], required: int) -> Any:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:required],
        "additionalProperties": False,
    }


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_object, st.dictionaries(NAMES, inner, max_size=3), st.integers(0, 3)),
        st.builds(
            lambda items, low: {"type": "array", "items": items, "minItems": low, "maxItems": 2},
            inner,
            st.integers(0, 2),
        ),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=60)
@given(
    SCHEMAS,
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.8, 1.5]),
    st.sampled_from([0, 5, 40]),
)
def test_any_schema_and_any_logits_give_a_text_of_the_schema(schema, seed, temperature, top_k):
    engine = FakeEngine(TOKENS.size)
    params = SamplingParams(temperature=temperature, seed=seed, top_k=top_k)
    sampler = Sampler(params, engine, (EOS,))
    state = sampler.legality = begin("json_schema", schema)
    random, text = np.random.default_rng(seed), list[int]()
    while not state.is_over and EOS not in text:
        logits = random.normal(0.0, 3.0, (1, TOKENS.size)).astype(np.float32)
        logits[0, EOS] += 4.0
        text += emit(sampler, logits, [], len(text), (EOS,))
        assert len(text) < 2000
    value = json.loads(bytes(token for token in text if token != EOS))
    jsonschema.validate(value, schema)
