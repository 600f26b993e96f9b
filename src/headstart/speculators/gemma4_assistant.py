"""Gemma 4's assistants: a few layers that read the target's own cache.

An assistant has no keys and values. All tokens of its draft are drafted at one position, each from
the state of the previous one, and attend to the target's cache.

Source: llama.cpp, src/models/gemma4-assistant.cpp and common/speculative.cpp
"""

from __future__ import annotations

from headstart.speculators.base import register
from headstart.speculators.base_states import StateSpeculator


@register
class Gemma4AssistantSpeculator(StateSpeculator):
    """Drafts with a gemma4-assistant model."""

    name = "gemma4-assistant"
    drafts_with = "gemma4-assistant"
