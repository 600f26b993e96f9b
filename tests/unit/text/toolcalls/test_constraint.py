"""Calls as grammars: what they let a model write is what the format reads."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from llguidance import LLMatcher, LLTokenizer
from tests.templates.conversations import TOOLS, by_name
from tests.unit.text.toolcalls.test_llama_server_parses import FAMILIES, reader_of
from tests.unit.text.toolcalls.test_parser import read

from headstart.sampling.grammar.source import grammar_text
from headstart.text.toolcalls.constraint import CallRules
from headstart.text.toolcalls.formats import JsonCall, MarkedCalls
from headstart.types.constraint import Constraint, ConstraintKind
from headstart.types.errors import RequestError

HERMES = MarkedCalls(
    "json", JsonCall(), call_start="<tool_call>\n", call_end="\n</tool_call>", separator="\n"
)
PARIS = {"city": "Paris", "days": 2}
_TOKENIZER = LLTokenizer("byte")


def accepts(constraint, text):
    """Whether the constrained text may be this, and end with it."""
    matcher = LLMatcher(_TOKENIZER, grammar_text(constraint))
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def first_accepted(constraint, text):
    """The shortest beginning that the constrained text may be, without white space behind it."""
    matcher = LLMatcher(_TOKENIZER, grammar_text(constraint))
    data = text.encode()
    for end, byte in enumerate(data, 1):
        assert matcher.consume_token(byte), data[:end]
        if matcher.is_accepting() and not chr(byte).isspace():
            return data[:end].decode()
    raise AssertionError(text)


def rules(tools=None, *, is_parallel=True, names=None):
    known = by_name(TOOLS if tools is None else tools)
    return CallRules(known, names or tuple(known), is_parallel, lambda _: None)


def tools_of(parameters, name="f", **more):
    return [{"type": "function", "function": {"name": name, "parameters": parameters, **more}}]


def calls_of(name):
    """The calls of a family's answers."""
    found = reader_of(name)[1].calls
    assert found is not None
    return found


def grammar_error(calls, tools):
    return LLMatcher(_TOKENIZER, grammar_text(rules(tools).required(calls))).get_error()


def written(name, *calls, tools=TOOLS):
    """A family's format, and the text that its template makes of an answer with calls."""
    template, answer_format = reader_of(name)
    question = {"role": "user", "content": "Q"}
    tool_calls = [
        {
            "id": f"a1b2c3d4{at}",
            "type": "function",
            "function": {"name": called, "arguments": json.dumps(arguments)},
        }
        for at, (called, arguments) in enumerate(calls)
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": tool_calls}
    text = template.render([question, answer], tools=tools, add_generation_prompt=False)
    return answer_format, text


OPTIONAL = tools_of(
    {
        "type": "object",
        "properties": {
            "area": {"anyOf": [{"$ref": "#/$defs/area"}, {"type": "null"}]},
            "unit": {"anyOf": [{"enum": ["C", "F"]}, {"type": "null"}]},
        },
        "required": ["area", "unit"],
        "$defs": {"area": {"type": "string"}},
    },
    "get_weather",
)


@pytest.mark.parametrize(
    ("tools", "arguments"), [(TOOLS, PARIS), (OPTIONAL, {"area": "90210", "unit": "C"})]
)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_grammar_holds_what_the_template_writes(name, tools, arguments):
    answer_format, text = written(name, ("get_weather", arguments), tools=tools)
    calls = answer_format.calls
    assert calls is not None
    constraint = rules(tools).required(calls)
    first = (calls.section_start + calls.call_start).strip() or "get_weather"
    if name == "meta-llama-Llama-3.1-8B-Instruct":
        first = '{"name": "get_weather"'
    if calls.header:
        first = calls.header.format(name="get_weather")
    if name == "openai-gpt-oss-120b":
        text = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        text, first = text + json.dumps(arguments) + "<|call|>", text
    answer = first_accepted(constraint, text[text.rindex(first) :])
    if tools is OPTIONAL:
        assert not accepts(constraint, re.sub(r"\bC\b", "X", answer))
    [call] = read(answer_format, [answer], tools=tools).calls
    assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_grammar_makes_a_model_write_is_read_as_calls(name):
    """Follow the grammar along random bytes; the text that comes out has to be a call."""
    answer_format = reader_of(name)[1]
    properties = {"a": {"enum": ["x", "y"]}, "b": {"const": 3}}
    tools = tools_of({"type": "object", "properties": properties, "required": ["a", "b"]})
    assert answer_format.calls is not None
    constraint = rules(tools, is_parallel=False).required(answer_format.calls)
    matcher = LLMatcher(_TOKENIZER, grammar_text(constraint))
    text = bytearray()
    while not matcher.is_accepting() and len(text) < 500:
        forced = matcher.compute_ff_tokens()
        token = forced[0] if forced else _lowest_legal(matcher)
        assert matcher.consume_token(token)
        text.append(token)
    message = read(answer_format, [text.decode()], tools=tools)
    assert [call.name for call in message.calls] == ["f"], text
    assert json.loads(message.calls[0].arguments)["b"] == 3


@pytest.mark.parametrize("name", FAMILIES)
def test_the_beginning_of_a_demanded_call_is_forced(name):
    constraint = rules(names=["get_weather"], is_parallel=False).required(calls_of(name))
    matcher = LLMatcher(_TOKENIZER, grammar_text(constraint))
    assert len(matcher.compute_ff_tokens()) >= len("get_weather")


def _lowest_legal(matcher):
    mask = matcher.compute_bitmask()
    letters = [*range(ord("0"), ord("9") + 1), *range(ord("a"), ord("z") + 1)]
    ids = [*letters, *(token for token in range(256) if token not in letters)]
    return next(token for token in ids if mask[token // 8] >> (token % 8) & 1)


def call_text(arguments, name="get_weather"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_arguments_follow_the_schema_and_are_those_declared():
    constraint = rules().required(HERMES)
    assert accepts(constraint, call_text('{"city": "X", "unit": "C"}'))
    assert not accepts(constraint, call_text('{"city": 5}'))
    assert not accepts(constraint, call_text('{"unit": "C"}'))
    assert not accepts(constraint, call_text('{"city": "X", "more": 1}'))
    assert not accepts(constraint, call_text('{"city": "X"}', name="unknown"))
    assert not accepts(constraint, "Text " + call_text('{"city": "X"}'))


def test_several_calls_only_where_they_may_be():
    one = call_text('{"city": "X"}')
    two = f"{one}\n{one}"
    assert accepts(rules().required(HERMES), two)
    single = rules(is_parallel=False).required(HERMES)
    assert accepts(single, one)
    assert not accepts(single, two)


def test_calls_that_are_messages_of_their_own_may_be_several():
    answer_format, text = written("muse-glimmer", ("get_weather", PARIS), ("get_weather", PARIS))
    calls = answer_format.calls
    two = text[text.index(" to=get_weather") : text.rindex("<|eot|>")]
    one = two[: two.index("<|eom|>")]
    for is_parallel in (True, False):
        allowed = rules(is_parallel=is_parallel)
        demanded, begun = allowed.required(calls), allowed.at_trigger(calls)
        assert accepts(demanded, one)
        assert accepts(demanded, two) == is_parallel
        # what follows the trigger, with which the section begins
        behind = [part.partition("<atem:function_calls>")[2] for part in (one, two)]
        assert [accepts(begun, part) for part in behind] == [True, is_parallel]
    message = read(answer_format, [two])
    assert [json.loads(call.arguments) for call in message.calls] == [PARIS, PARIS]


def test_only_the_named_tool_may_be_called():
    constraint = rules(names=["send"]).required(HERMES)
    assert not accepts(constraint, call_text('{"city": "X"}'))
    assert accepts(constraint, call_text('{"to": [], "text": ""}', name="send"))


def test_a_tool_without_parameters_is_called_without_arguments():
    constraint = rules(tools_of(None, name="now")).required(HERMES)
    assert accepts(constraint, call_text("{}", name="now"))
    assert not accepts(constraint, call_text('{"a": 1}', name="now"))


def test_headers_may_stand_before_what_is_demanded():
    known = {"<|start|>": 7, "<|channel|>": 8, "<|message|>": 9}.get
    after, header = "<|start|>assistant", "<|channel|>final<|message|>"
    found = CallRules({}, (), False, known)
    content = found.before(after, header)
    assert content == 'before: (<[7]> "assistant")? <[8]> "final" <[9]>'
    assert found.before(after, "") == 'before: <[7]> "assistant"'
    assert found.before("", "") == ""
    rules_of_text = rules().before(after, header)
    constraint = Constraint(kind=ConstraintKind.REGEX, text="[0-9]", before=rules_of_text)
    for text in ("1", f"{header}1", f"{after}{header}1"):
        assert accepts(constraint, text)
    assert not accepts(constraint, f"{after}1")


def test_behind_its_trigger_a_call_goes_on():
    constraint = rules().at_trigger(HERMES)
    assert constraint is not None
    assert constraint.triggers == (b"<tool_call>",)
    assert accepts(constraint, call_text('{"city": "X"}').removeprefix("<tool_call>"))


def test_calls_without_a_marker_have_no_trigger():
    assert rules().at_trigger(MarkedCalls("json", JsonCall())) is None


def test_special_tokens_stand_by_their_ids():
    known = {"<tool_call>": 7, "</tool_call>": 8}
    found = CallRules(by_name(), ("send",), True, known.get)
    text = found.required(HERMES).text
    assert "<[7]>" in text
    assert "<[8]>" in text
    assert '"<tool_call>' not in text


NESTED = tools_of({
    "type": "object",
    "properties": {
        "list": {"type": "array", "items": {"$ref": "#/$defs/pair"}, "minItems": 2, "maxItems": 2},
        "maybe": {"type": ["integer", "null"]},
        "what": {"anyOf": [{"const": "a"}, {"type": "boolean"}]},
    },
    "required": ["list", "what"],
    "$defs": {"pair": {"type": "object", "properties": {
        "left": {"enum": ["l"]}, "right": {"type": "integer", "minimum": 3, "maximum": 3},
    }, "required": ["left", "right"]}},
})  # fmt: skip
PAIR = {"left": "l", "right": 3}
IN_THE_FAMILIES = {
    "google-gemma-4-31B-it": (
        '<|tool_call>call:f{list:[{left:<|"|>l<|"|>,right:3},{left:<|"|>l<|"|>,right:3}],'
        'what:<|"|>a<|"|>}<tool_call|>'
    ),
    "LFM2.5-8B-A1B": (
        '<|tool_call_start|>[f(list=[{"left": "l", "right": 3}, {"left": "l", "right": 3}], '
        "what='a')]<|tool_call_end|>"
    ),
    "MiniMax-M3": (
        '~<tool_call>\n~<invoke name="f">~<list>'
        + "~<item>~<left>l~</left>~<right>3~</right>~</item>" * 2
        + "~</list>~<what>a~</what>~</invoke>\n~</tool_call>"
    ).replace("~", "]<]minimax[>["),
    "muse-glimmer": (
        ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'
        '<atem:parameter name="list">[{"left": "l", "right": 3}, {"left": "l", "right": 3}]'
        '</atem:parameter>\n<atem:parameter name="what">a</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls>"
    ),
}


@pytest.mark.parametrize("name", IN_THE_FAMILIES)
def test_values_of_a_form_of_its_own_follow_the_schema(name):
    text = IN_THE_FAMILIES[name]
    answer_format = reader_of(name)[1]
    constraint = rules(NESTED).required(answer_format.calls)
    assert accepts(constraint, text)
    for right, wrong in (("3", "4"), ("what", "why"), ("left", "lost"), ("f", "g")):
        assert not accepts(constraint, text.replace(right, wrong))
    message = read(answer_format, [text], tools=NESTED)
    assert json.loads(message.calls[0].arguments) == {"list": [PAIR, PAIR], "what": "a"}


def test_a_value_may_contain_values_of_its_own_kind():
    tree = {"type": "object", "properties": {"tree": {"$ref": "#/$defs/node"}},
            "required": ["tree"], "$defs": {"node": {"type": "array", "items":
            {"$ref": "#/$defs/node"}}}}  # fmt: skip
    constraint = rules(tools_of(tree)).required(calls_of("google-gemma-4-31B-it"))
    assert accepts(constraint, "<|tool_call>call:f{tree:[[],[[],[]]]}<tool_call|>")
    assert not accepts(constraint, "<|tool_call>call:f{tree:[1]}<tool_call|>")


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "Qwen3-Coder", "google-gemma-4-31B-it"])
def test_what_cannot_be_demanded_is_an_error_of_strict_tools_only(name):
    """Tools of agents have schemas with all sorts of keywords; they must not fail for them."""
    items = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    parameters, calls = {"type": "object", "properties": {"a": items}}, calls_of(name)
    assert not grammar_error(calls, tools_of(parameters))
    strict = tools_of(parameters, strict=True)
    if name == "google-gemma-4-31B-it":  # whose form is not JSON
        with pytest.raises(RequestError, match="uniqueItems"):
            rules(strict).required(calls)
    else:
        assert "uniqueItems" in grammar_error(calls, strict)


def test_guidance_that_is_no_object_is_the_requests_fault():
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "x-guidance": 5}}}
    with pytest.raises(RequestError, match="x-guidance"):
        grammar_error(calls_of("Qwen3-Coder"), tools_of(parameters))


@pytest.mark.parametrize(
    "name", ["Qwen3-Coder", "google-gemma-4-31B-it", "LFM2.5-8B-A1B", "MiniMax-M3"]
)
def test_what_a_form_cannot_demand_of_texts_is_an_error_of_strict_tools_only(name):
    text = {"type": "string", "description": "a day", "pattern": "[0-9]+"}
    parameters = {"type": "object", "properties": {"a": text}, "required": ["a"]}
    calls, strict = calls_of(name), tools_of(parameters, strict=True)
    assert not grammar_error(calls, tools_of(parameters))
    with pytest.raises(RequestError, match="pattern"):
        rules(strict).required(calls)
    del text["pattern"]
    rules(strict).required(calls)


@pytest.mark.parametrize("name", ["Qwen3-Coder", "google-gemma-4-31B-it", "LFM2.5-8B-A1B"])
@pytest.mark.parametrize(
    "keywords",
    [
        {"oneOf": -1},
        {"anyOf": {"type": "string"}},
        {"enum": None},
        {"enum": []},
        {"type": "array", "minItems": "a", "maxItems": [1]},
        {"type": {"a": 1}},
        {"type": "object", "properties": [], "required": 5},
    ],
)
def test_a_schema_that_is_none_raises_no_other_error(name, keywords):
    for parameters in (
        {"type": "object", "properties": {"a": keywords}, "required": True},
        keywords,
    ):
        with contextlib.suppress(RequestError):
            rules(tools_of(parameters)).required(calls_of(name))


def test_arguments_between_markers_may_refer_to_definitions():
    tools = tools_of({
        "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"],
        "$defs": {"n": {"type": "integer"}},
    })  # fmt: skip
    constraint = rules(tools).required(calls_of("Qwen3-Coder"))
    text = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert accepts(constraint, text.format(7))
    assert not accepts(constraint, text.format("x"))


OWN_FORMS = ("Qwen3-Coder", "google-gemma-4-31B-it", "LFM2.5-8B-A1B", "MiniMax-M3")
TEXT = {"type": "string"}


@pytest.mark.parametrize("name", OWN_FORMS)
def test_a_grammar_grows_with_the_schema_and_not_with_its_definitions_at_each_property(name):
    number = {"title": "n" * 50_000, "anyOf": [{"type": "integer"}]}
    properties = {f"a{at}": {"$ref": "#/$defs/n"} for at in range(50)}
    tools = tools_of({
        "type": "object", "properties": properties | {f"b{at}": TEXT for at in range(50)},
        "$defs": {"n": number, "unused": TEXT | {"title": "u" * 100_000}},
    })  # fmt: skip
    assert len(rules(tools).required(calls_of(name)).text) < 80_000


def test_a_list_of_at_least_fewer_than_none_may_be_empty():
    names = {"type": "array", "items": {"type": "integer"}, "minItems": -1}
    tools = tools_of({"type": "object", "properties": {"a": names}, "required": ["a"]})
    constraint = rules(tools).required(calls_of("google-gemma-4-31B-it"))
    assert accepts(constraint, "<|tool_call>call:f{a:[]}<tool_call|>")
    assert accepts(constraint, "<|tool_call>call:f{a:[1,2]}<tool_call|>")
