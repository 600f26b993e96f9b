"""Gemma 4's assistants: a few layers that read the target's own cache.

An assistant has no keys and values. All tokens of its draft are drafted at one position, each from
the state of the previous one, and attend to the target's cache.

Source: llama.cpp, src/models/gemma4-assistant.cpp and common/speculative.cpp
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.speculators.base import register
from headstart.speculators.base_states import StateDraft, StateSpeculator


@register
class Gemma4AssistantSpeculator(StateSpeculator):
    """Drafts with a gemma4-assistant model."""

    name = "gemma4-assistant"
    needs_draft_model = True

    def _catch_up_heads(self, drafts: Sequence[StateDraft], head: int) -> list[NDArray[np.float32]]:
        """The target has already cached everything before the newest token."""
        firsts = []
        for states in (draft.states for draft in drafts):
            states.count_missing(states.length)
            firsts.append(states.before(states.length, states.length + 1))
        return firsts

    def _position(self, draft: StateDraft, num_tokens: int) -> int:
        return draft.states.length
