"""The capabilities of a chat template, found by rendering it with values that record accesses.

They are those of llama-server (`chat_template_caps` in its /props).

Source: llama.cpp's common/jinja/caps.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex

_MARKER = "probe-5d1c"
Render = Callable[[Mapping[str, Any]], str | None]
"""Renders text for these variables; None if the template refuses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Which fields of a conversation reach the text, and in which form."""

    supports_string_content: bool = True
    supports_typed_content: bool = False  # a list of parts
    supports_tools: bool = True
    supports_tool_calls: bool = True
    supports_parallel_tool_calls: bool = True
    supports_system_role: bool = True
    supports_preserve_reasoning: bool = False  # of earlier answers
    supports_reasoning_effort: bool = False
    supports_object_arguments: bool = False  # a call's arguments as an object, not as JSON text


class ReadText(str):
    """A string that records whether it was iterated or tested for being a string."""

    was_iterated = False
    was_tested = False

    def __iter__(self) -> Iterator[str]:
        self.was_iterated = True
        return super().__iter__()

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        self.was_iterated = self.was_iterated or not isinstance(key, slice)
        return super().__getitem__(key)


class _ReadList(list[Any]):
    was_read = False

    def __iter__(self) -> Iterator[Any]:
        self.was_read = True
        return super().__iter__()

    def __getitem__(self, key: Any) -> Any:
        self.was_read = True
        return super().__getitem__(key)


class _ReadDict(dict[str, Any]):
    """A dict that records which keys were read; dumping it as JSON reads all."""

    def __init__(self, *arguments: Any, **members: Any) -> None:
        super().__init__(*arguments, **members)
        self.keys_read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.keys_read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_read.add(key)
        return super().get(key, default)

    def items(self) -> Any:
        self.keys_read |= self.keys()
        return super().items()

    def __repr__(self) -> str:
        self.keys_read |= self.keys()
        return super().__repr__()


def test_and_note_text(value: Any) -> bool:
    """Jinja's test `is string`, which a `ReadText` notes."""
    if isinstance(value, ReadText):
        value.was_tested = True
    return isinstance(value, str)


def find_capabilities(render: Render, variables: frozenset[str]) -> Capabilities:
    """Probe a template; `variables` are its undeclared names."""
    takes_text, takes_parts = _content_forms(render)
    return Capabilities(
        supports_string_content=takes_text,
        supports_typed_content=takes_parts,
        supports_system_role=_reads_system(render),
        supports_preserve_reasoning=_keeps_thoughts(render),
        supports_reasoning_effort=not variables.isdisjoint(
            ("reasoning_effort", "reasoning_strength")
        ),
        **_tool_support(render),
    )


def _content_forms(render: Render) -> tuple[bool, bool]:
    """(whether content may be a string, whether it may be a list of parts)"""
    content = ReadText(_MARKER)
    text = render({"messages": [{"role": "user", "content": content}]})
    takes_parts = content.was_iterated
    takes_text = text is not None and not (takes_parts and _MARKER not in text)
    if content.was_tested:
        parts = _ReadList()
        if render({"messages": [{"role": "user", "content": parts}]}) is not None:
            takes_parts = takes_parts or parts.was_read
    return takes_text, takes_parts


def _reads_system(render: Render) -> bool:
    system = _ReadDict(role="system", content="System message")
    text = render({"messages": [system, {"role": "user", "content": "User message"}]})
    return "content" in system.keys_read and (text is None or "system message" in text.lower())


def _keeps_thoughts(render: Render) -> bool:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "User message"}]
    for thoughts in (_MARKER, "Reasoning content"):
        answer = {"role": "assistant", "content": "Assistant message"}
        messages += [answer | {"reasoning_content": thoughts}, messages[0]]
    text = render(
        {"messages": messages, "enable_thinking": True} | preserve_reasoning(is_enabled=True)
    )
    return text is not None and _MARKER in text


def preserve_reasoning(*, is_enabled: bool) -> dict[str, bool]:
    """The variables by which templates keep or drop the reasoning of earlier answers."""
    return {
        "preserve_thinking": is_enabled,
        "clear_thinking": not is_enabled,
        "truncate_history_thinking": not is_enabled,
        "drop_thinking": not is_enabled,
    }


def _tool_support(render: Render) -> dict[str, bool]:
    """The capabilities that concern tools."""
    of_object = _keys_of_calls(render, _ReadDict(arg="value"))
    takes_objects = "arg" in of_object
    arguments = {"arg": "value"} if takes_objects else '{"arg": "value"}'
    probes = [of_object] if of_object else []
    if not takes_objects:
        probes.append(_keys_of_calls(render, arguments))
    return {
        "supports_tools": all("name" in keys for keys in probes),
        "supports_tool_calls": all("tool_calls" in keys for keys in probes),
        "supports_object_arguments": takes_objects,
        "supports_parallel_tool_calls": "function" in _keys_of_calls(render, arguments, 2),
    }


def _keys_of_calls(render: Render, arguments: Any, num_calls: int = 1) -> set[str]:
    """The keys that a template reads of a tool, of a message with calls, of the last of these and
    of its arguments; none if it refuses the conversation.
    """
    parameters = {
        "type": "object",
        "properties": {"arg": {"type": "string", "description": "Arg description"}},
        "required": ["arg"],
    }
    function = _ReadDict(name="tool1", description="Tool description", parameters=parameters)
    calls = [
        _ReadDict(
            id=f"call{index:05}",
            type="function",
            function=_ReadDict(name="tool1", arguments=arguments),
        )
        for index in range(1, num_calls + 1)
    ]
    asked = {"role": "user", "content": "User message"}
    caller = _ReadDict(role="assistant", content="", tool_calls=calls)
    messages = [
        asked,
        caller,
        {"role": "tool", "content": "Tool response", "tool_call_id": "call00001"},
        {"role": "assistant", "content": "The tool response was 'tool response'"},
        asked,
    ]
    tools = [{"name": "tool", "type": "function", "function": function}]
    if render({"messages": messages, "tools": tools}) is None:
        return set()
    of_arguments: set[str] = getattr(arguments, "keys_read", set())
    return function.keys_read | caller.keys_read | calls[-1].keys_read | of_arguments
