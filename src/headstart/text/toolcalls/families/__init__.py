"""Formats that cannot be found by rendering a template, one file each."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.families import (
    functionary,
    gemma4,
    harmony,
    kimi_k3,
    lfm2,
    minimax_m3,
    muse,
)

FAMILIES: Sequence[tuple[tuple[str, ...], AnswerFormat]] = (
    ((">>>all", ">>>${recipient}"), functionary.FORMAT),
    (("'<|tool_call>call:'",), gemma4.FORMAT),
    (("<|channel|>",), harmony.FORMAT),
    (("<|open|>", "<|close|>", "<|end_of_msg|>"), kimi_k3.FORMAT),
    (("<|tool_list_start|>", "<|tool_list_end|>"), lfm2.FORMAT),
    (("List of tools: [",), lfm2.FORMAT),
    (("]<]minimax[>[", "<tool_call>", "<invoke name="), minimax_m3.FORMAT),
    (("<atem:function_calls>", "<|eom|>"), muse.FORMAT),
)
"""Words that only templates of a family hold, and its format, without what a template shows."""
