"""Finds a model's reasoning markers by rendering its chat template with and without reasoning.

Formats that this does not show are listed with words that only their templates contain.

Source: llama.cpp's common/chat-diff-analyzer.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from headstart.text.quirks import find_quirk, thinking_parts

_MARKER = r"(?:<[^>]*>|\[[^\]]*\])"
_QUESTION = {"role": "user", "content": "U_USER_MSG Hello END_U"}
_CONTENT = "A_ASST_MSG I can help END_A"
_THOUGHTS = "REASON_PART I am thinking END_R"


@dataclass(frozen=True, slots=True)
class Thinking:
    """The markers around a model's reasoning."""

    start: str  # "" where every answer begins with reasoning
    end: str
    # what the model writes between reasoning and content
    answer: str = ""
    # text before the reasoning of a continued answer, if not the template's
    opening: str | None = None
    # whether a continued answer without reasoning gets no empty markers
    skips_empty: bool = False

    def continued(self, generation_prompt: str, thoughts: str, content: str | None) -> str:
        """The start of an answer: its reasoning, and its content unless that is None."""
        opening = self.opening
        if opening is None:
            opening = generation_prompt.partition(self.start.strip())[0] if self.start else ""
        if not self.start:
            return generation_prompt + (content or "")
        if content is None:
            return opening + self.start + thoughts
        begun = "" if self.skips_empty and not thoughts else self.start + thoughts
        return opening + begun + self.end + self.answer + content


RenderProbe = Callable[..., str | None]
"""Renders messages with `enable_thinking` and `add_generation_prompt`; None if it refuses."""

_KNOWN: tuple[tuple[tuple[str, ...], Thinking], ...] = (
    # words of the template, thinking
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
    """The reasoning markers; None if no reasoning is found."""
    if find_quirk(source) is thinking_parts:
        return Thinking("[THINK]", "[/THINK]", opening="")
    for words, thinking in _KNOWN[:-1]:
        if all(word in source for word in words):
            return thinking
    words, old_qwen = _KNOWN[-1]
    found = _by_rendering(render)
    if found is None and all(word in source for word in words):
        return old_qwen  # it only removes reasoning
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
    return Thinking(start, end) if end else None


def _around_thoughts(text: str | None) -> tuple[str, str]:
    """The markers next to the reasoning, with the white space between."""
    if text is None:
        return "", ""
    wrapped = re.search(rf"({_MARKER}\s*){_THOUGHTS}(\s*{_MARKER}\s*)", text)
    if wrapped:
        return wrapped[1], wrapped[2]
    delimited = re.search(rf"{_THOUGHTS}\s*({_MARKER}\s*)", text)
    return ("", delimited[1]) if delimited else ("", "")


def _by_switching(render: RenderProbe) -> tuple[str, str]:
    """Markers that enable_thinking adds to or removes from the generation prompt."""
    off, on = (
        render([_QUESTION], enable_thinking=is_on, add_generation_prompt=True)
        for is_on in (False, True)
    )
    if off is None or on is None:
        return "", ""
    off, on = (text.rpartition(_QUESTION["content"])[2] for text in (off, on))
    if on.startswith(off):
        return on[len(off) :], ""
    if not off.startswith(on):
        return "", ""
    added = off[len(on) :]
    pair = re.search(rf"({_MARKER})\s*({_MARKER})\s*$", off)
    if pair is None:
        return "", added
    return pair[1], (pair[2] if pair[1] in added else added)
