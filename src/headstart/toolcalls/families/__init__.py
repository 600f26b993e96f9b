"""Formats that renderings of a template do not show: one file each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headstart.text.chat_template import ChatTemplate
from headstart.toolcalls.answer_format import AnswerFormat

Detect = Callable[[str, ChatTemplate], AnswerFormat | None]
FAMILIES: Sequence[Detect] = ()
KNOWN_FORMATS: dict[str, AnswerFormat] = {}
"""name -> format, without what depends on a template"""
