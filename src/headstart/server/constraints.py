"""Constraints on an answer's text: response_format, json_schema, grammar, regex, lark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from headstart.config import SamplingConfig
from headstart.server.body import is_id
from headstart.server.errors import not_supported, shorten, wrong_value
from headstart.server.schemas import FormatBody, GenerationBody
from headstart.types import Vocab
from headstart.types.constraint import Constraint, ConstraintKind
from headstart.types.errors import ConfigError, RequestError


def read_constraint(body: GenerationBody, vocab: Vocab) -> Constraint | None:
    """The one constraint of a body; None if there is none.

    Raises:
        RequestError: a field has the wrong form, or two of them set a constraint.
    """
    readers: dict[str, Callable[[Any], Constraint | None]] = {
        "response_format": _from_format,
        "json_schema": lambda value: _schema("json_schema", value),
        "grammar": _grammar,
        "regex": lambda value: Constraint(kind=ConstraintKind.REGEX, text=value),
        "lark": lambda value: Constraint(kind=ConstraintKind.LARK, text=value),
    }
    found: dict[str, Constraint] = {}
    for name, read in readers.items():
        value = getattr(body, name)
        if value not in (None, "") and (constraint := read(value)):
            found[name] = constraint
    if len(found) > 1:
        raise RequestError(f"{' and '.join(found)} both constrain the answer; send one of them")
    triggers, only = _triggers(body, vocab), next(iter(found.values()), None)
    if not triggers:
        return only
    if only is None:
        raise RequestError("grammar_lazy needs a grammar; send one or leave it out")
    return dataclasses.replace(only, triggers=triggers, includes_trigger=True)


def wanted_schema(body: FormatBody) -> dict[str, Any] | None:
    """The JSON schema of a body's answer; None without one."""
    constraint = _from_format(body.response_format) if body.response_format else None
    if body.json_schema:
        constraint = _schema("json_schema", body.json_schema)
    if constraint is None:
        return None
    schema: dict[str, Any] = orjson.loads(constraint.text or '{"type":"object"}')
    return schema


def default_constraint(config: SamplingConfig) -> Constraint | None:
    """The constraint that flags set for every answer.

    Raises:
        ConfigError: a file cannot be read, or is not a schema.
    """
    grammar = _given(config.grammar, config.grammar_file, "--grammar-file")
    schema = _given(config.json_schema, config.json_schema_file, "--json-schema-file")
    try:
        if grammar:
            return _grammar(grammar)
        return _schema("--json-schema", orjson.loads(schema)) if schema else None
    except RequestError as error:
        raise ConfigError(str(error)) from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--json-schema is not valid JSON: {error}") from error


def _given(text: str | None, file: str | None, flag: str) -> str | None:
    if file is None:
        return text
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {file} cannot be read: {error}") from error


def _from_format(value: dict[str, Any]) -> Constraint | None:
    kind, kinds = value.get("type", "text"), ("text", "json_object", "json_schema")
    if kind not in kinds:
        raise wrong_value("response_format.type", kind, f"one of {', '.join(kinds)}")
    if kind == "text":
        return None
    if kind == "json_object" and value.get("schema") is None:
        return Constraint(kind=ConstraintKind.JSON_OBJECT)
    field = "response_format"
    holder: Any = value
    if kind == "json_schema" and (value.get("json_schema") or value.get("schema") is None):
        field, holder = "response_format.json_schema", value.get("json_schema")
    if not isinstance(holder, dict):
        raise wrong_value(field, holder, "an object with a schema")
    if holder.get("schema") is None:
        raise RequestError(f"{field}.schema is required")
    return _schema(f"{field}.schema", holder["schema"])


def _schema(field: str, value: Any) -> Constraint:
    if not isinstance(value, dict):
        raise wrong_value(field, value, "a JSON schema, an object")
    if not value:  # any object, as in llama-server
        return Constraint(kind=ConstraintKind.JSON_OBJECT)
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, text=orjson.dumps(value).decode())


def _grammar(text: str) -> Constraint:
    """Lark if it begins with %llguidance, as in llama-server; otherwise GBNF."""
    is_lark = text.lstrip().startswith("%llguidance")
    return Constraint(kind=ConstraintKind.LARK if is_lark else ConstraintKind.GBNF, text=text)


def _triggers(body: GenerationBody, vocab: Vocab) -> tuple[bytes, ...]:
    """Triggers in llama-server's form: {"type": 0, "token": id} or {"type": 1, "value": text}."""
    if not body.grammar_lazy:
        return ()
    entries = body.grammar_triggers
    if not isinstance(entries, list) or not entries:
        raise RequestError("grammar_lazy needs grammar_triggers, a list of objects")
    triggers = []
    for entry in entries:
        kind = entry.get("type") if isinstance(entry, dict) else None
        if kind == 1 and isinstance(entry.get("value"), str):
            triggers.append(entry["value"].encode())
        elif kind == 0 and is_id(entry.get("token")) and 0 <= entry["token"] < vocab.size:
            triggers.append(vocab.token_text(entry["token"]))
        elif kind in (2, 3):
            raise not_supported(
                "grammar_triggers holds a pattern but only words (type 1) and tokens (type 0) are "
                "supported"
            )
        else:
            raise RequestError(
                f"grammar_triggers holds {shorten(entry)} but must hold "
                '{"type": 1, "value": text} or {"type": 0, "token": id}'
            )
    return tuple(triggers)
