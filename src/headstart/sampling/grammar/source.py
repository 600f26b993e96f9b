"""Converts a constraint to llguidance's grammar text; needs no vocabulary and no model."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from headstart.sampling.grammar.forcing import lark_may_force_much, schema_may_force_much
from headstart.sampling.grammar.triggers import THOUGHTS
from headstart.types.constraint import Constraint, ConstraintKind
from headstart.types.errors import RequestError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# the converter is quadratic in the length of the text
MAX_GBNF_BYTES = 1 << 14
# Objects of a schema are written as Python's json.dumps writes them, which is what models mostly
# learned, unless the schema has its own "x-guidance". Objects without a schema may have any layout,
# but only a limited amount of white space.
SCHEMA_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
# llguidance computes all of the forced text at once, which could delay a step by seconds: within
# the limits of a step, a literal of 128 bytes, a counted group or terminal, or a count of three
# digits can be repeated about ten thousand times. Grammars that contain one are compiled without
# forcing.
_MAY_FORCE_MUCH = re.compile(
    r'''(?<!"description": )(?<!"description":)"(?:[^"\\\n]|\\.){128,}"'''
    r"|\{\s*\d{3,}|[})]\{\s*\d{2,}|^[A-Z][A-Z0-9_]*\b[^\n]*\{\s*\d{2,}",
    re.MULTILINE,
)


def grammar_text(constraint: Constraint, *, forces: bool = True) -> str:
    """llguidance's form of the constraint: Lark, or JSON that holds grammars.

    Args:
        forces: whether llguidance may compute forced tokens.

    Raises:
        RequestError: it is malformed or uses an unsupported feature.
    """
    try:
        text = _convert(constraint)
    except RecursionError as error:
        raise RequestError(
            f"the {constraint.kind.title} is nested too deep; use fewer levels"
        ) from error
    except ValueError as error:
        raise RequestError(
            f"the {constraint.kind.title} cannot be used: {_reason(error)}"
        ) from error
    is_lark = constraint.kind in (ConstraintKind.LARK, ConstraintKind.GBNF)
    # behind reasoning, up to four white-space characters may come
    before = f"({THOUGHTS} SPACE?)? " * constraint.is_behind_thoughts
    before += "before? " * bool(constraint.before)
    options = ""
    if not forces or _MAY_FORCE_MUCH.search(constraint.text) or _is_multiplied(constraint, text):
        options = '%llguidance {"no_forcing": true}'
    if not before and not options:
        return text
    (grammar,) = [{"lark_grammar": text}] if is_lark else json.loads(text)["grammars"]
    space = "SPACE: /[ \\t\\r\\n]{1,4}/" * constraint.is_behind_thoughts
    lines = [options, f"start: {before}@body", space, constraint.before]
    whole = {"lark_grammar": "\n".join(filter(None, lines))}
    return json.dumps({"grammars": [whole, {**grammar, "name": "body"}]})


def _is_multiplied(constraint: Constraint, converted: str) -> bool:
    """Whether its rules reference each other so often that short literals become long texts."""
    if constraint.kind in (ConstraintKind.LARK, ConstraintKind.GBNF):
        return lark_may_force_much(converted)
    if constraint.kind is ConstraintKind.JSON_SCHEMA:
        return schema_may_force_much(json.loads(constraint.text))
    return False


def _convert(constraint: Constraint) -> str:
    text = constraint.text
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            options: JsonCompileOptions = {"whitespace_pattern": r"[ \t\r\n]{1,20}"}
            return LLMatcher.grammar_from_json_schema('{"type":"object"}', options)
        case ConstraintKind.JSON_SCHEMA:
            LLMatcher.grammar_from_json_schema(text, SCHEMA_OPTIONS)  # well-formed, not too deep
            closed = json.dumps(close_objects(json.loads(text)))
            return LLMatcher.grammar_from_json_schema(closed, SCHEMA_OPTIONS)
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(text)
        case ConstraintKind.LARK:
            return _lark(text)
        case ConstraintKind.GBNF:
            return LLMatcher.grammar_from_lark(_gbnf_as_lark(text))


def close_objects(schema: Any) -> Any:
    """Add `additionalProperties: false` to objects that list properties and leave this open.

    As in llama-server: a model that may write any property is less likely to finish. Every such
    text satisfies the schema. Merged schemas are left alone: one might forbid a property of the
    other.
    """
    schema = copy.deepcopy(schema)
    parts = list(_parts(schema))
    for part in parts if not any(map(_merges, parts)) else ():
        names, required = part.get("properties"), part.get("required", [])
        if (
            isinstance(names, dict)
            and isinstance(required, list)
            and all(name in names for name in required)
            and "minProperties" not in part
            and "patternProperties" not in part
            and part.get("type", "object") == "object"
        ):
            part.setdefault("additionalProperties", False)
    return schema


def _merges(part: dict[str, Any]) -> bool:
    return "allOf" in part or (
        "properties" in part and not part.keys().isdisjoint(("$ref", "anyOf", "oneOf"))
    )


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """All subschemas, including the schema itself."""
    if isinstance(schema, list):
        for one in schema:
            yield from _parts(one)
    if not isinstance(schema, dict):
        return
    yield schema
    for key, value in schema.items():
        # names to schemas: a property may be named like a keyword
        is_map = key in ("properties", "patternProperties", "$defs", "definitions")
        if is_map and isinstance(value, dict):
            for one in value.values():
                yield from _parts(one)
        elif key not in ("const", "enum", "default", "examples"):  # not schemas
            yield from _parts(value)


def _lark(text: str) -> str:
    # llguidance would ignore these options, or could no longer roll back a token
    if found := re.search(r"\[[^\[\]\"/]*\b(temperature|max_tokens|stop)\s*=", text):
        raise ValueError(
            f"rule option {found[1]} is not supported; use max_tokens, temperature and stop of the "
            "request"
        )
    return LLMatcher.grammar_from_lark(text)


def _gbnf_as_lark(text: str) -> str:
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_GBNF_BYTES:
        raise ValueError(
            f"it has {size} bytes but at most {MAX_GBNF_BYTES} are taken in this form; write it in "
            "Lark"
        )
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise
    except Exception as error:  # the converter raises plain Exception for an unknown rule
        raise ValueError(str(error)) from error


def _reason(error: Exception) -> str:
    """The error on one line."""
    text = str(error)
    if "recursion limit" in text:
        return "it is nested deeper than 128 levels of JSON"
    return one_line(text)


def one_line(text: str) -> str:
    """Join and shorten an error message that may quote a whole grammar."""
    words = (word if len(word) <= 60 else f"{word[:30]}..." for word in text.split())
    line = " ".join(words)
    return line if len(line) <= 300 else f"{line[:140]} ... {line[-150:]}"
