"""What a body demands of the answer's text reaches the engine as one constraint, or is refused."""

from __future__ import annotations

import json

import pytest
from tests.server.fake_worker import FakeWorker
from tests.server.serving import error_of, served_model, serving

from headstart.config import SamplingConfig
from headstart.server.constraints import default_constraint
from headstart.server.sampling import request_defaults
from headstart.server.service import RequestDefaults
from headstart.types.constraint import Constraint, ConstraintKind
from headstart.types.errors import ConfigError

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TRIGGER, LONG_TRIGGER = ({"type": 1, "value": "a" * length} for length in (1, 1025))
ROUTES = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/completions", {"prompt": "a"}),
    ("/completion", {"prompt": "a"}),
)


def constraint_of(client, worker, fields) -> Constraint | None:
    """The constraint of the request, the same on every route."""
    found = []
    for path, body in ROUTES:
        worker.requests.clear()
        answer = client.post(path, json=body | fields)
        assert answer.status_code == 200, answer.text
        found.append(worker.requests[0].constraint)
    assert found[0] == found[1] == found[2]
    return found[0]


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", TEXT),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            "json_schema",
            TEXT,
        ),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", TEXT),
        ({"json_schema": SCHEMA}, "json_schema", TEXT),
        ({"json_schema": {}}, "json_object", ""),
        ({"response_format": {"type": "json_schema", "schema": {}}}, "json_object", ""),
        ({"grammar": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
        ({"grammar": '%llguidance {}\nstart: "a"'}, "lark", '%llguidance {}\nstart: "a"'),
        ({"regex": "[ab]+"}, "regex", "[ab]+"),
        ({"lark": 'start: "a"'}, "lark", 'start: "a"'),
    ],
)
def test_every_form_becomes_a_constraint(client, worker, fields, kind, text):
    assert constraint_of(client, worker, fields) == Constraint(kind=ConstraintKind(kind), text=text)


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"grammar": ""}])
def test_without_a_demand_there_is_no_constraint(client, worker, fields):
    assert constraint_of(client, worker, fields) is None


def test_a_lazy_grammar_begins_at_its_triggers(client, worker):
    fields = {
        "grammar": 'root ::= "<f>" [0-9]',
        "grammar_lazy": True,
        "grammar_triggers": [{"type": 1, "value": "<f>"}, {"type": 0, "value": "b", "token": 98}],
    }
    assert constraint_of(client, worker, fields) == Constraint(
        kind=ConstraintKind.GBNF,
        text=fields["grammar"],
        triggers=(b"<f>", b"b"),
        includes_trigger=True,
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"grammar": 3}, "grammar is 3 but must be a text"),
        ({"regex": ["a"]}, "regex is ['a'] but must be a text"),
        ({"json_schema": "{}"}, "json_schema is '{}' but must be a JSON schema"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema is null but must",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": 3}},
            "response_format.json_schema is 3 but must be an object",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema is required",
        ),
        ({"json_schema": {}, "regex": "a"}, "json_schema and regex both constrain"),
        ({"regex": "a" * (2**20 + 1)}, "1048577 bytes but at most 1048576"),
        ({"grammar_lazy": True}, "grammar_lazy needs grammar_triggers"),
        (
            {"grammar_lazy": True, "grammar_triggers": [{"type": 1, "value": "a"}]},
            "grammar_lazy needs a grammar",
        ),
        (
            {"grammar": "x", "grammar_lazy": True, "grammar_triggers": [{"type": 0, "token": -1}]},
            "grammar_triggers holds",
        ),
        (
            {"grammar": "x", "grammar_lazy": True, "grammar_triggers": [TRIGGER] * 65},
            "the constraint has 65 triggers but at most 64",
        ),
        (
            {"grammar": "x", "grammar_lazy": True, "grammar_triggers": [LONG_TRIGGER]},
            "a trigger has 1025 bytes but must have 1 to 256",
        ),
    ],
)
def test_what_makes_no_sense_is_400_and_named(client, worker, fields, says):
    for path, body in ROUTES:
        answer = client.post(path, json=body | fields)
        assert says in error_of(answer, 400)
    assert worker.requests == []


def test_a_pattern_as_trigger_is_not_supported(client):
    fields = {"grammar": "x", "grammar_lazy": True, "grammar_triggers": [{"type": 2, "value": "a"}]}
    answer = client.post("/completion", json={"prompt": "a"} | fields)
    assert "pattern" in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "not_supported_error"


def test_what_flags_demand_holds_for_requests_that_demand_nothing():
    form = Constraint(kind=ConstraintKind.GBNF, text='root ::= "b"')
    worker = FakeWorker()
    model = served_model(defaults=RequestDefaults(constraint=form))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with serving(worker, model=model) as client:
        assert constraint_of(client, worker, {}) == form
        assert constraint_of(client, worker, {"grammar": ""}) == form
        own = constraint_of(client, worker, {"regex": "a"})
        assert own == Constraint(kind=ConstraintKind.REGEX, text="a")
        for choice, expected in (("auto", None), ("none", form)):
            worker.requests.clear()
            path, body = ROUTES[0]
            client.post(path, json=body | {"tools": [tool], "tool_choice": choice})
            assert worker.requests[0].constraint == expected


def test_flags_give_the_form_as_text_or_file(tmp_path):
    (tmp_path / "g").write_text('root ::= "a"')
    (tmp_path / "s").write_text(TEXT)
    grammar = Constraint(kind=ConstraintKind.GBNF, text='root ::= "a"')
    schema = Constraint(kind=ConstraintKind.JSON_SCHEMA, text=TEXT)
    for config, expected in (
        (SamplingConfig(), None),
        (SamplingConfig(grammar='root ::= "a"'), grammar),
        (SamplingConfig(grammar_file=str(tmp_path / "g")), grammar),
        (SamplingConfig(json_schema=TEXT), schema),
        (SamplingConfig(json_schema_file=str(tmp_path / "s")), schema),
    ):
        assert request_defaults(config, {}, 256).constraint == expected
    for config, reason in (
        (SamplingConfig(grammar_file=str(tmp_path / "none")), "cannot be read"),
        (SamplingConfig(json_schema="{"), "not valid JSON"),
        (SamplingConfig(json_schema="[]"), "must be a JSON schema"),
    ):
        with pytest.raises(ConfigError, match=reason):
            default_constraint(config)
    with pytest.raises(ConfigError, match="use one"):
        SamplingConfig(grammar="a", json_schema="{}")
