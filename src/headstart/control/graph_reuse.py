"""Steps like the last one cost less where a step's graph has to be sent to another machine.

libllama keeps the graph of a decode for the next one, if that has as many rows, outputs and
sequences. Over RPC it is then not sent again: about 12 KB a layer, and as long as that takes. So a
step may be made as wide as the last one, with rows without a purpose. Each such step pays a rent,
what the wider step takes more; when the rent since the last change has reached the price of a
change, the width changes. So holding it costs at most as much again as the best choice in
hindsight (ski rental: Karlin et al. 1988, https://doi.org/10.1007/BF01762111).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class GraphReuse:
    """The shape of the last decode, and what another one costs."""

    SAVED: ClassVar = ("change_ms",)

    def __init__(self) -> None:
        self.change_ms = 0.0  # how much longer a step takes whose shape is not the last one's
        self._last = (0, 0)  # rows, slots; no slots: with a prompt
        self._rent = 0.0  # milliseconds since the last change

    def held(self, num_slots: int) -> int:
        """Rows of the last decode if a step of `num_slots` slots can be like it, else 0."""
        rows, slots = self._last
        return rows if self.change_ms and slots == num_slots else 0

    def curve(self, curve: Sequence[float], num_slots: int) -> Sequence[float]:
        """Milliseconds by rows after the last decode: up to its rows, as many cost the same."""
        held = self.held(num_slots)
        if not 0 < held < len(curve):
            return curve
        changed = [ms + self.change_ms for ms in curve]
        left = max(0.0, self.change_ms - self._rent)
        for rows in range(held):
            changed[rows] = min(curve[rows] + left, curve[held])
        changed[held] = curve[held]
        return changed

    def width(self, rows: int, width: int, curve: Sequence[float], num_slots: int) -> int:
        """The rows of a step that has at least `rows`, and `width` if only kernels mattered."""
        held = self.held(num_slots)
        if not rows <= held < len(curve) or held == width:
            return width
        rent = max(0.0, curve[held] - curve[width])
        if self._rent + rent > self.change_ms:
            return width
        self._rent += rent
        return held

    def decoded(self, rows: int, num_slots: int) -> bool:
        """Note a decode, of no slots if it has prompt rows, which is not repeated; returns whether
        its graph differed from the last one's.
        """
        is_changed = (rows, num_slots) != self._last or not num_slots
        if is_changed:
            self._rent = 0.0
        self._last = (rows, num_slots)
        return is_changed
