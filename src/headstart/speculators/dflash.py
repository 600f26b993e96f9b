"""DFlash: a block of tokens in one decode, from the inputs of several layers of the target.

The target's states become keys and values of the draft model. A block is the last token of the text
and a mask for each token to draft; all of them attend to each other. A longer block costs little
more, so control decides how much of it is verified.

Source: llama.cpp, src/models/dflash.cpp and common/speculative.cpp
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.speculators.base import register
from headstart.speculators.base_states import StateSpeculator
from headstart.speculators.target_states import TargetStates
from headstart.types import Batch
from headstart.types.engine import Blocks, DraftContext


@register
class DflashSpeculator(StateSpeculator):
    """Drafts with a DFlash model."""

    name = "dflash"
    drafts_with = "dflash"

    def __init__(self, context: DraftContext, layers: Sequence[int]) -> None:
        super().__init__(context, layers)
        assert context.blocks is not None
        self.blocks: Blocks = context.blocks
        self._block = Batch(context.max_batch_tokens)

    def _draft(self, drafts: Sequence[TargetStates]) -> None:
        drafts = [states for states in drafts if states.builder.has_room]
        if not drafts:
            return
        self._read(drafts)
        first = int(not self.blocks.has_anchor)  # the row that drafts the first token
        size = first + max(states.builder.limit for states in drafts)
        logits = self._decode(drafts, size)
        scores = self.context.outputs()[:, 0].tolist() if self.blocks.has_confidence else None
        for index, states in enumerate(drafts):
            for row in range(index * size + first, (index + 1) * size):
                states.builder.extend(logits[row], scores[row] if scores else None)
                if not states.builder.has_room:
                    break

    def _read(self, drafts: Sequence[TargetStates]) -> None:
        """Decode the states of verified tokens, including the last one, which the block follows."""
        for states in drafts:
            states.count_missing(states.read[0])
        parts = [(one, one.before(one.read[0], one.length + 1)) for one in drafts]
        self.decode_rows(parts, 0)
        for states in drafts:
            states.expect_newest(0)

    def _decode(self, drafts: Sequence[TargetStates], size: int) -> NDArray[np.float32]:
        """Logits of blocks of `size` rows; those of one sequence are adjacent."""
        self._block.clear()
        masks = [self.blocks.mask_id] * (size - 1)
        for states in drafts:
            start = states.length + 1
            self._block.add(states.ids[0], start, [states.newest, *masks], size)
            states.held[0] = start + size
        return self.decode(self._block)

    def _draft_nothing(self) -> None:
        self._block.clear()
        self._block.add(0, 0, [self.blocks.mask_id] * self.blocks.size, self.blocks.size)
        self.context.decode(self._block)

    def describe(self) -> dict[str, object]:
        return {"block_size": self.blocks.size} | super().describe()


@register
class DsparkSpeculator(DflashSpeculator):
    """Drafts with a DSpark model: a DFlash model with likely successors of each token.

    Its scores come from a head for the probability of acceptance.
    """

    name = "dspark"
    drafts_with = "dspark"
