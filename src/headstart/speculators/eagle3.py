"""EAGLE-3: one layer drafts from the inputs of three layers of the target.

The states of the three layers are mixed into one. From it and the token after it the layer predicts
the next token and the next mixed state, from which it continues. Its output head may cover only
part of the vocabulary; other tokens are never drafted.

Source: Li et al. 2025, https://arxiv.org/abs/2503.01840; llama.cpp, common/speculative.cpp
"""

from __future__ import annotations

from headstart.speculators.base import register
from headstart.speculators.base_states import StateSpeculator


@register
class Eagle3Speculator(StateSpeculator):
    """Drafts with an EAGLE-3 model."""

    name = "eagle3"
    drafts_with = "eagle3"
