"""How often each width of a step was used lately: by those, level and shape are told apart."""

from __future__ import annotations

FADES = 0.998  # what a use counts for one step later
FORGOTTEN = 0.01


class RecentUse:
    """Uses by knot, the latest counting most."""

    def __init__(self) -> None:
        self._uses: dict[int, float] = {}
        self._latest = 1.0  # what the next use counts; grows instead of all others fading
        self._total = self._squares = 0.0  # of the uses

    def add(self, knot: int) -> None:
        """Count a use."""
        self._latest /= FADES
        use = self._uses.get(knot, 0.0)
        self._uses[knot] = use + self._latest
        self._total += self._latest
        self._squares += self._latest * (2.0 * use + self._latest)
        if self._latest > 1.0 / FORGOTTEN:
            self._fade()

    def balance(self, shape: list[float], knot: int, moved: float) -> float:
        """Take back what a cell's move did to the mean of the cells in use; returns it.

        The mean is weighted by use. Cells that are not in use stay as they are.
        """
        common = moved * self._uses[knot] / self._total
        per_use = common * self._total / self._squares
        for one, use in self._uses.items():
            shape[one] -= per_use * use
        return common

    def _fade(self) -> None:
        faded = {knot: use / self._latest for knot, use in self._uses.items()}
        self._uses = {knot: use for knot, use in faded.items() if use > FORGOTTEN}
        self._latest, self._total = 1.0, sum(self._uses.values())
        self._squares = sum(use * use for use in self._uses.values())
