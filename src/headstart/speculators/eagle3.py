"""EAGLE-3: one layer drafts from what enters three layers of the target.

The states of the three layers are mixed into one. From it and the token after it the layer predicts
the next token, and what it takes for the next mixed state, with which it goes on. Its output head
may know only a part of the vocabulary; the other tokens are never drafted.

Source: Li et al. 2025, https://arxiv.org/abs/2503.01840; llama.cpp, common/speculative.cpp
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.speculators.base import register
from headstart.speculators.base_states import StateSpeculator
from headstart.speculators.feature_caches import EncodedCaches
from headstart.types.feature_batch import DraftContext


@register
class Eagle3Speculator(StateSpeculator):
    """Drafts with an EAGLE-3 model."""

    name = "eagle3"
    needs_draft_model = True

    def __init__(
        self,
        context: DraftContext,
        layers: Sequence[int],
        options: StateSpeculator.Options | None = None,
    ) -> None:
        options = options or self.Options()
        caches = EncodedCaches(context, layers, options.waiting_mib)
        super().__init__(caches, layers, options)
