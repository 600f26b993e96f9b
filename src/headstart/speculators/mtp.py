"""The target's own multi-token heads draft, for all sequences in one batch per token.

A head is an additional layer that was trained with the model: from a token and the target's last
state before it, it predicts the next token. The first draft token comes from the target's state,
the next ones from the head's estimate of it; if a model has several heads, each drafts one token.

Source: DeepSeek-V3 2024, https://arxiv.org/abs/2412.19437, section 2.2; llama.cpp,
common/speculative.cpp
"""

from __future__ import annotations

from typing import Any

from headstart.speculators.base import register
from headstart.speculators.base_states import StateSpeculator
from headstart.types import LAST_STATE
from headstart.types.engine import DraftContext


@register
class MtpSpeculator(StateSpeculator):
    """Drafts with heads that read the target's hidden states."""

    name = "mtp"
    drafts_with = "mtp"
    reading = "heads are processing the prompt"
    unsure = "heads are unsure"

    def __init__(self, heads: DraftContext) -> None:
        super().__init__(heads, [LAST_STATE])

    def describe(self) -> dict[str, Any]:
        return {"heads": self.context.num_heads} | super().describe()
