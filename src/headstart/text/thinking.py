"""Finds a model's reasoning markers by rendering its chat template with and without reasoning.

Markers that rendering does not show are in quirks.py.

Source: llama.cpp's common/chat-diff-analyzer.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_MARKER = r"(?:<[^>]*>|\[[^\]]*\])"
QUESTION = {"role": "user", "content": "U_USER_MSG Hello END_U"}
CONTENT = "A_ASST_MSG I can help END_A"
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
        if not self.start:
            return generation_prompt + (content or "")
        opening = self.opening
        if opening is None:
            opening = generation_prompt.partition(self.start.strip())[0]
        if content is None:
            return opening + self.start + thoughts
        begun = "" if self.skips_empty and not thoughts else self.start + thoughts
        return opening + begun + self.end + self.answer + content


RenderProbe = Callable[..., str | None]
"""`ChatTemplate.try_to_render`."""


def find_thinking(source: str, render: RenderProbe) -> Thinking | None:
    """The reasoning markers that rendering shows; None if it shows no reasoning."""
    found = _by_rendering(render)
    if found is None and "content.split('</think>')" in source:
        return Thinking("<think>", "</think>")  # Qwen3's older template only removes reasoning
    if found and "laguna_glm_thinking" in source:
        return Thinking(found.start.strip(), found.end.strip())
    if found and all(word in source for word in ("<tool_call>", "<function=", "<parameter=")):
        return Thinking("<think>\n", "\n</think>\n\n")  # Qwen3-Coder's relatives
    return found


def _by_rendering(render: RenderProbe) -> Thinking | None:
    answer = {"role": "assistant", "content": CONTENT, "reasoning_content": _THOUGHTS}
    enabled = {"enable_thinking": True}
    text = render([QUESTION, answer], add_generation_prompt=False, arguments=enabled)
    start, end = _around_thoughts(text)
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
    off, on = (render([QUESTION], arguments={"enable_thinking": is_on}) for is_on in (False, True))
    if off is None or on is None:
        return "", ""
    off, on = (text.rpartition(QUESTION["content"])[2] for text in (off, on))
    if on.startswith(off):
        return on[len(off) :], ""
    if not off.startswith(on):
        return "", ""
    added = off[len(on) :]
    pair = re.search(rf"({_MARKER})\s*({_MARKER})\s*$", off)
    if pair is None:
        return "", added
    return pair[1], (pair[2] if pair[1] in added else added)
