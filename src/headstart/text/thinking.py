"""How a model marks its thoughts, found by rendering its chat template with and without some.

Formats whose templates do not show it are listed, known by words that only their template holds.

Source: llama.cpp's common/chat-diff-analyzer.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from headstart.structures.prefix import common_prefix_length

_MARKER = r"(?:<[^>]*>|\[[^\]]*\])"
_MARKERS = re.compile(_MARKER)
_QUESTION = {"role": "user", "content": "U_USER_MSG Hello END_U"}
_CONTENT = "A_ASST_MSG I can help END_A"
_THOUGHTS = "REASON_PART I am thinking END_R"
_ANCHOR_CHARS = 64


@dataclass(frozen=True, slots=True)
class Thinking:
    """What stands around a model's thoughts."""

    start: str  # "" where thoughts simply begin with the answer
    end: str
    # what the answer begins with after thoughts, where the model writes something between
    answer: str = ""
    # text that stands before the thoughts of a continued answer, where the template's is not it
    opening: str | None = None
    # whether an answer that is continued without thoughts gets no empty ones
    skips_empty: bool = False

    def continued(self, generation_prompt: str, thoughts: str, content: str | None) -> str:
        """The beginning of an answer: its thoughts, and unless it is None its content."""
        opening = self.opening
        if opening is None:
            opening = generation_prompt.partition(self.start.strip())[0] if self.start else ""
        if not self.start:
            return generation_prompt + (content or "")
        if content is None:
            return opening + self.start + thoughts
        begun = "" if self.skips_empty and not thoughts else self.start + thoughts
        return opening + begun + self.end + self.answer + content


class RenderProbe(Protocol):
    """Render a conversation; None where the template refuses it."""

    def __call__(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        enable_thinking: bool = True,
        add_generation_prompt: bool = False,
    ) -> str | None: ...


_HEADER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
_KNOWN: tuple[tuple[tuple[str, ...], Thinking], ...] = (
    # words of the template, thinking
    (
        ("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]", "[THINK]"),
        Thinking("[THINK]", "[/THINK]", opening=""),
    ),
    (
        ("<|channel|>",),
        Thinking(
            "<|channel|>analysis<|message|>",
            "<|end|>",
            "<|start|>assistant<|channel|>final<|message|>",
        ),
    ),
    (
        ("<atem:function_calls>", "<|eom|>"),
        Thinking(
            " to=self<|message|>",
            "<|eom|>",
            "<|start|>assistant to=user<|message|>",
            opening="<|start|>assistant",
        ),
    ),
    (("<|tool_calls_section_begin|>", "<|tool_call_begin|>"), Thinking("<think>", "</think>")),
    (
        ("<|open|>", "<|close|>", "<|end_of_msg|>"),
        Thinking("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>"),
    ),
    (
        ("<|START_TEXT|>", "<|START_ACTION|>"),
        Thinking("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>"),
    ),
    (("<|tool_list_start|>", "<|tool_list_end|>"), Thinking("<think>", "</think>")),
    (("List of tools: [",), Thinking("<think>", "</think>")),
    (("dsml_token", "DSML", "function_calls"), Thinking("<think>", "</think>")),
    (
        ("dsml_token", "DSML", "tool_calls"),
        Thinking("<think>", "</think>", opening="<\uff5cAssistant\uff5c>", skips_empty=True),
    ),
    (("'<|tool_call>call:'",), Thinking("<|channel>thought\n", "<channel|>")),
    (
        ("Write your thoughts between <think></think>", "<response></response>"),
        Thinking("<think>", "</think>"),
    ),
    (("<SPECIAL_10>", "<SPECIAL_12>", "<TOOL_RESPONSE>"), Thinking("<think>\n", "</think>")),
    (("content.split('</think>')",), Thinking("<think>", "</think>")),
)


def find_thinking(source: str, render: RenderProbe) -> Thinking | None:
    """How thoughts are marked; None if nothing shows that the model has any."""
    for words, thinking in _KNOWN[:-1]:
        if all(word in source for word in words):
            return thinking
    words, old_qwen = _KNOWN[-1]
    found = _by_rendering(render)
    if found is None and all(word in source for word in words):
        return old_qwen  # it only removes thoughts
    if found and "laguna_glm_thinking" in source:
        return Thinking(found.start.strip(), found.end.strip())
    if found and all(word in source for word in ("<tool_call>", "<function=", "<parameter=")):
        return Thinking("<think>\n", "\n</think>\n\n")  # Qwen3-Coder's relatives
    return found


def _by_rendering(render: RenderProbe) -> Thinking | None:
    answer = {"role": "assistant", "content": _CONTENT, "reasoning_content": _THOUGHTS}
    start, end = _around_thoughts(render([_QUESTION, answer]))
    if not (start and end):
        prompt_start, prompt_end = _by_switching(render)
        start, end = start or prompt_start, end or prompt_end
    if not (start and end):
        called_start, called_end = _around_thoughts(_render_call(render))
        if called_end:  # only before calls
            start, end = called_start, called_end
    return Thinking(start, end) if end else None


def _render_call(render: RenderProbe) -> str | None:
    """A message that calls a tool after thoughts: some templates show no others."""
    function = {"name": "FFF_FUN", "arguments": '{"AA_ARG": "VVVV"}'}
    call = {"id": "call00001", "type": "function", "function": function}
    parameters = {"type": "object", "properties": {"AA_ARG": {"type": "string"}}}
    tool = {"name": "FFF_FUN", "description": "Test", "parameters": parameters}
    caller = {"role": "assistant", "content": None, "reasoning_content": _THOUGHTS}
    return render(
        [_QUESTION, caller | {"tool_calls": [call]}],
        tools=[{"type": "function", "function": tool}],
    )


def _around_thoughts(text: str | None) -> tuple[str, str]:
    """The markers next to the thoughts, with the white space between."""
    if text is None:
        return "", ""
    wrapped = re.search(rf"({_MARKER}\s*){_THOUGHTS}(\s*{_MARKER}\s*)", text)
    if wrapped:
        return wrapped[1], wrapped[2]
    delimited = re.search(rf"{_THOUGHTS}\s*({_MARKER}\s*)", text)
    return ("", delimited[1]) if delimited else ("", "")


def _by_switching(render: RenderProbe) -> tuple[str, str]:
    """What the generation prompt gains or loses with thinking."""
    off, on = (
        render([_QUESTION], enable_thinking=is_on, add_generation_prompt=True)
        for is_on in (False, True)
    )
    if off is None or on is None or off == on:
        return "", ""
    only_off, only_on = _difference(off, on)
    if not only_off.strip() and on.rstrip().endswith(only_on.strip()):
        return only_on, ""
    if not only_on.strip() and off.rstrip().endswith(only_off.strip()):
        segments = [part for part in _segments(off) if part.strip()]
        is_marked = segments[-1] == only_off.strip() and _MARKERS.fullmatch(segments[-2])
        return (segments[-2] if is_marked else ""), only_off
    return _added_at_the_end(off, on)


def _added_at_the_end(one: str, other: str) -> tuple[str, str]:
    """A pair of markers with which one text ends where the other stops."""
    for base, extended in ((other, one), (one, other)):
        anchor = base[-_ANCHOR_CHARS:]
        at = extended.rfind(anchor)
        added = [part for part in _segments(extended[at + len(anchor) :]) if part.strip()]
        if at >= 0 and len(added) == 2 and all(map(_MARKERS.fullmatch, added)):
            return added[0], added[1]
    return "", ""


def _difference(one: str, other: str) -> tuple[str, str]:
    """The parts in which two texts differ, whole markers and words of text between them."""
    if other.startswith(one):
        return "", other[len(one) :]
    if one.startswith(other):
        return one[len(other) :], ""
    left, right = list(_segments(one)), list(_segments(other))
    start = common_prefix_length(left, right)
    left, right = left[start:], right[start:]
    end = common_prefix_length(left[::-1], right[::-1])
    return "".join(left[: len(left) - end]), "".join(right[: len(right) - end])


def _segments(text: str) -> Iterator[str]:
    """Markers and what is between them."""
    at = 0
    for marker in _MARKERS.finditer(text):
        if at < marker.start():
            yield text[at : marker.start()]
        yield marker[0]
        at = marker.end()
    if at < len(text):
        yield text[at:]
