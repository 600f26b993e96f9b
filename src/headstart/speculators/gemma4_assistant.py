"""Gemma 4's assistants: a few layers that read the target's own cache.

An assistant has no keys and values. All tokens of its draft are guessed at one position, each from
the state that the one before it left, and look at what the target cached.

Source: llama.cpp, src/models/gemma4-assistant.cpp and common/speculative.cpp
"""

from __future__ import annotations

from headstart.speculators.base import register
from headstart.speculators.base_states import StateDraft, StateSpeculator
from headstart.structures.feature_batch import DraftContext
from headstart.structures.feature_caches import BorrowedCaches
from headstart.types import LAST_STATE


@register
class Gemma4AssistantSpeculator(StateSpeculator):
    """Drafts with a gemma4-assistant model."""

    name = "gemma4-assistant"
    needs_draft_model = True

    def __init__(
        self, context: DraftContext, options: StateSpeculator.Options | None = None
    ) -> None:
        options = options or self.Options()
        super().__init__(BorrowedCaches(context, options.waiting_mib), [LAST_STATE], options)

    def _add(self, draft: StateDraft, head: int, *, is_first: bool) -> int:
        states, length = draft.states, draft.states.length
        if is_first:
            states.count_missing(length)
        token = draft.request.tokens[-1] if is_first else draft.tokens[-1]
        before = states.before(length, length + 1) if is_first else draft.guessed[-1][None]
        self.caches.batch.add_rows(draft.request.seq_id, length, [token], before)
        return self.caches.batch.num_rows
