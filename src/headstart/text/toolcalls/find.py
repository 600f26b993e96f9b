"""Finds the format of calls and content by rendering a chat template with known values.

Two conversations that differ in one value show the text around it. This finds every format whose
calls are JSON objects, or names with JSON or tagged arguments; the others are in `families/`.

Source of the idea: llama.cpp's common/chat-diff-analyzer.cpp.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from headstart.structures.prefix import common_prefix_length
from headstart.text.chat_template import ChatTemplate, probe_limit
from headstart.text.thinking import CONTENT, QUESTION
from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.formats import JsonCall, MarkedCalls, NamedCall, TaggedArguments
from headstart.types.errors import NotSupportedError, RequestError

_NAMES = ("fff_first_fun_f", "sss_second_fun_s")
_KEYS = ("aa_arg_fst_aa", "bb_arg_snd_bb")
_VALUES = ("vvv_first_val_v", "www_second_val_w")
_IDS = ("call00001", "call00002")


@lru_cache(maxsize=4)
def find_format(template: ChatTemplate) -> AnswerFormat:
    """The format of a template's answers; `why_no_calls` if no call format was found.

    Raises:
        ModelError: the template does not end for a message with calls.
    """
    if family := template.quirks.answers:
        return dataclasses.replace(family, thinking=template.thinking)
    with probe_limit():
        probe = _Probe(template)
        start, end = probe.around_content()
        try:
            calls, why_none = _find_calls(probe), ""
        except NotSupportedError as error:
            calls, why_none = None, str(error)
    return AnswerFormat(
        thinking=template.thinking,
        calls=calls,
        content_start=start,
        content_end=end,
        calls_end_thoughts=template.quirks.calls_end_thoughts,
        why_no_calls=why_none,
    )


class _Probe:
    """Renders answers of one template."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template, self.source = template, template.source
        self._render = partial(template.try_to_render, tools=_tools(), add_generation_prompt=False)
        self._before = self._render([QUESTION])
        self.generation_prompt = ""
        with contextlib.suppress(RequestError):  # what is refused has no format
            self.generation_prompt = template.generation_prompt([QUESTION], tools=_tools())
        start, found, self.message_end = (self.answer(content=CONTENT) or "").partition(CONTENT)
        self._content_start = start if found else ""

    def answer(self, **message: Any) -> str | None:
        """The rendered assistant message, without the generation prompt."""
        whole = self._render([QUESTION, {"role": "assistant", "content": "", **message}])
        if whole is None or self._before is None or not whole.startswith(self._before):
            return None
        text = whole[len(self._before) :]
        shared = text[: common_prefix_length(text, self.generation_prompt)]
        return text[len(re.sub(r"<[^<>]*$", "", shared)) :]  # markers stay whole

    def call(self, arguments: Mapping[str, Any]) -> str:
        """The rendered message with one call.

        Raises:
            NotSupportedError: the template does not render it.
        """
        text = self.answer(tool_calls=[_call(0, arguments)])
        if text is None:
            raise NotSupportedError("the template refuses messages with tool calls")
        if _NAMES[0] not in text:
            raise NotSupportedError("the template does not show tool calls")
        return text

    def around_content(self) -> tuple[str, str]:
        """The markers around content, without reasoning and the end of turn."""
        tag = re.match(r"\s*<[^<>]*>", self.message_end)
        end = _content_marker(tag[0]) if tag else ""
        start = _content_marker(self.without_thoughts(self._content_start))
        return start, end if "END" in end.upper() else ""

    def without_thoughts(self, text: str) -> str:
        thinking = self._template.thinking
        end = thinking.end.strip() if thinking else ""
        return text.rpartition(end)[2] if end else text


def _content_marker(text: str) -> str:
    """The text without white space around it if it is a single tag for content, else ""."""
    words = ("RESPONSE", "TEXT", "content", "response")
    is_marker = re.fullmatch(r"\s*<[^<>]*>\s*", text) and any(word in text for word in words)
    return text.strip() if is_marker else ""


def _call(at: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": _NAMES[at], "arguments": json.dumps(arguments)}
    return {"id": _IDS[at], "type": "function", "function": function}


def _tools() -> list[dict[str, Any]]:
    properties = {key: {"type": "string", "description": "An argument"} for key in _KEYS}
    parameters = {"type": "object", "properties": properties, "required": list(_KEYS)}
    return [
        {
            "type": "function",
            "function": {"name": name, "description": "A function", "parameters": parameters},
        }
        for name in _NAMES
    ]


def _find_calls(probe: _Probe) -> MarkedCalls:
    values = dict(zip(_KEYS, _VALUES, strict=True))
    one = probe.call(values)
    two = probe.answer(tool_calls=[_call(0, values), _call(1, values)]) or ""
    if not all(name in two for name in _NAMES):
        two = ""
    if re.search(rf'[{{,:]\s*"{_NAMES[0]}"', one):
        return _json_calls(probe, one, two)
    if re.search(rf'"{_KEYS[0]}"\s*:', one):
        return _named_json_calls(probe, one, two)
    if _KEYS[0] in one and _VALUES[0] in one:
        return _tagged_calls(probe, one, two)
    raise NotSupportedError("the template shows the arguments of calls in no known form")


Texts = tuple[str, str | None, str]
"""The texts before the first call, between two calls (None: one at most), and after the last one"""


def _around(one: str, two: str, span: Callable[[str, int], tuple[int, int]]) -> Texts:
    """The texts around calls; `span`: where a call is in a text, by its number."""
    start, end = span(one, 0)
    if not two:
        return one[:start], None, one[end:]
    second = span(two, 1)
    return one[:start], two[end : second[0]], two[second[1] :]


def _json_calls(probe: _Probe, one: str, two: str) -> MarkedCalls:
    def span(text: str, number: int) -> tuple[int, int]:
        return _object_span(text, text.index(_NAMES[number]))

    start, end = span(one, 0)
    return _marked("json", _json_body(one[start:end]), _around(one, two, span), probe)


def _object_span(text: str, inside: int) -> tuple[int, int]:
    """Span of the outermost JSON object around a position."""
    at = text.find("{")
    while 0 <= at <= inside:
        try:
            _, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            end = -1
        if end > inside:
            return at, end
        at = text.find("{", at + 1)
    raise NotSupportedError("the template shows calls in something like JSON that is none")


def _json_body(text: str) -> JsonCall:
    outer = json.loads(text)
    if _NAMES[0] in outer:
        return JsonCall(is_name_key=True, name_key="", arguments_key="")
    flat = {**outer, **(outer["function"] if isinstance(outer.get("function"), dict) else {})}
    keys = {"name": "", "arguments": "", "id": ""}
    for key, value in flat.items():
        if value == _NAMES[0]:
            keys["name"] = key
        elif key != "function" and _KEYS[0] in json.dumps(value):
            keys["arguments"] = key
        elif (isinstance(value, str) and any(one in value for one in _IDS)) or key.endswith("id"):
            keys["id"] = key
    if not keys["name"] or not keys["arguments"]:
        raise NotSupportedError("the template shows calls as JSON without a name or arguments")
    order = list(flat)
    is_last = bool(keys["id"]) and order.index(keys["id"]) > order.index(keys["arguments"])
    return JsonCall(keys["name"], keys["arguments"], keys["id"], is_id_last=is_last)


def _named_json_calls(probe: _Probe, one: str, two: str) -> MarkedCalls:
    def span(text: str, number: int) -> tuple[int, int]:
        start, end = _object_span(text, (text.index, text.rindex)[number](_KEYS[0]))
        return text.rindex(_NAMES[number], 0, start), end

    before, between, after = _around(one, two, span)
    head = one[len(before) : _object_span(one, one.index(_KEYS[0]))[0]]
    head = head.replace(_NAMES[0], "{name}").replace(_IDS[0], "{id}")
    is_name_id = before.endswith("functions.") and head.startswith("{name}:0")
    if is_name_id:
        before, head = before.removesuffix("functions."), head.replace(":0", "", 1)
        between = between and between.removesuffix("functions.")
    elif _IDS[0] in before:
        before, name_start = before.rsplit(_IDS[0], 1)
        head = "{id}" + name_start + head
        between = between and between.rsplit(_IDS[1], 1)[0]
    body = NamedCall(head, is_name_id=is_name_id)
    return _marked("named-json", body, (before, between, after), probe)


def _tagged_calls(probe: _Probe, one: str, two: str) -> MarkedCalls:
    head, rest = one.split(_NAMES[0], 1)[1].split(_KEYS[0], 1)
    key_end, rest = rest.split(_VALUES[0], 1)
    middle, rest = rest.split(_KEYS[1], 1)
    tail = rest.split(_VALUES[1], 1)[1]
    key_start = _common_suffix(head, middle)
    name_end = head[: len(head) - len(key_start)]
    value_end = _value_end(middle[: len(middle) - len(key_start)], tail)
    empty = probe.call({}).split(_NAMES[0], 1)[1]
    if name_end and not empty.startswith(name_end.rstrip()):
        key_start, name_end = name_end + key_start, ""
    arguments = _tagged_arguments(probe, key_start, key_end, value_end)

    def span(text: str, number: int) -> tuple[int, int]:
        end = text.rindex(_VALUES[1]) + len(_VALUES[1] + value_end)
        return text.index(_NAMES[number]), end

    body = NamedCall("{name}" + name_end, arguments)
    return _marked("tagged", body, _around(one, two, span), probe)


def _value_end(middle: str, tail: str) -> str:
    """The end marker of values: common to a middle and the last one, whole tags only."""
    common = middle[: common_prefix_length(middle, tail)]
    tags = re.match(r"(?:\s*<[^<>]*>|[^<>]*?\]<\]\S*)*", common)
    return tags[0] if tags and tags[0].strip() else common


def _tagged_arguments(
    probe: _Probe, key_start: str, key_end: str, value_end: str
) -> TaggedArguments:
    """Detect whether an attribute distinguishes strings from other values."""
    number = probe.call({_KEYS[0]: 7})
    other = number.split(_KEYS[0], 1)[1].split("7", 1)[0]
    has_cdata = "<![CDATA[" in probe.source
    if other == key_end:
        return TaggedArguments(key_start, key_end, value_end, has_cdata=has_cdata)
    words = re.fullmatch(r"(.*?\")(\w+)(\".*)", key_end, re.S)
    if not words or not other.startswith(words[1]) or not other.endswith(words[3]):
        raise NotSupportedError("the template marks arguments of different types in different ways")
    return TaggedArguments(key_start, words[1], value_end, words[3], words[2], has_cdata)


def _marked(kind: str, body: JsonCall | NamedCall, texts: Texts, probe: _Probe) -> MarkedCalls:
    """Separate the markers around each call from those around all calls."""
    before, between, after = texts
    if probe.generation_prompt and before.endswith(probe.generation_prompt):
        before = ""
    before = probe.without_thoughts(before)
    if not before.strip() and not isinstance(body, JsonCall):
        raise NotSupportedError("no marker before a call distinguishes it from content")
    after = _without_turn_end(after, probe.message_end)
    if between is None:
        return MarkedCalls(kind, body, before.lstrip(), after.rstrip(), is_parallel=False)
    call_start = _common_suffix(before, between)
    if not before[: len(before) - len(call_start)].strip():
        call_start = call_start.lstrip()  # without a section, white space is the separator
    between = between[: len(between) - len(call_start)]
    call_end = between[: common_prefix_length(between, after)]
    return MarkedCalls(
        kind,
        body,
        section_start=before[: len(before) - len(call_start)].lstrip(),
        section_end=after[len(call_end) :].rstrip(),
        call_start=call_start,
        call_end=call_end,
        separator=between[len(call_end) :],
    )


def _without_turn_end(text: str, end: str) -> str:
    """Without the end-of-turn marker, which is not part of the text."""
    cut = text[: len(text) - common_prefix_length(text[::-1], end[::-1])]
    return cut if not re.search(r"<[^<>]*$", cut) else text


def _common_suffix(one: str, other: str) -> str:
    """The common suffix, without a partial marker at its start."""
    length = common_prefix_length(one[::-1], other[::-1])
    common = one[len(one) - length :]
    return re.sub(r"^[^<]*>", "", common) if "<" in one else common
