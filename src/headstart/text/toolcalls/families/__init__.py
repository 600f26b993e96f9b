"""Formats that renderings of a template do not show: one file each.

Each file says by which words of a template its family is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstart.text.chat_template import ChatTemplate
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

Detect = Callable[[ChatTemplate], AnswerFormat | None]
FAMILIES: Sequence[Detect] = (
    functionary.detect,
    gemma4.detect,
    harmony.detect,
    kimi_k3.detect,
    lfm2.detect,
    minimax_m3.detect,
    muse.detect,
)
KNOWN_FORMATS: dict[str, AnswerFormat] = {
    "functionary": functionary.FORMAT,
    "gemma4": gemma4.FORMAT,
    "harmony": harmony.FORMAT,
    "kimi-k3": kimi_k3.FORMAT,
    "lfm2": lfm2.FORMAT,
    "minimax-m3": minimax_m3.FORMAT,
    "muse": muse.FORMAT,
}
"""name -> format, without what depends on a template"""
