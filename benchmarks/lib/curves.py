"""What a step costs by its rows."""

from __future__ import annotations

from collections.abc import Mapping

from headstart.control.cost import GROWN, CostTable
from headstart.types.errors import ConfigError


class CostCurve:
    """Milliseconds of a step by rows: linear between the points given, and beyond the last two."""

    def __init__(self, points: Mapping[int, float]) -> None:
        """Take milliseconds by rows.

        Raises:
            ConfigError: fewer than two points, or one that is not positive.
        """
        if len(points) < 2 or min(points) < 1 or not min(points.values()) > 0.0:
            raise ConfigError(
                f"a cost curve needs two or more positive ROWS:MILLISECONDS, got {dict(points)}"
            )
        self.points = sorted(points.items())

    @classmethod
    def parse(cls, text: str) -> CostCurve:
        """From "1:48,2:64".

        Raises:
            ConfigError: it is something else.
        """
        try:
            pairs = [point.split(":") for point in text.split(",")]
            return cls({int(rows): float(milliseconds) for rows, milliseconds in pairs})
        except ValueError as error:
            raise ConfigError(
                f"{text!r} is no cost curve; write ROWS:MILLISECONDS,..., for instance 1:48,2:64"
            ) from error

    def table(self) -> CostTable:
        """What control learns on such a machine."""
        table = CostTable()
        for rows, milliseconds in self.points:
            for _ in range(GROWN):
                table.observe(rows, 0, milliseconds)
        return table

    def __call__(self, rows: int) -> float:
        points = self.points
        right = next((i for i, (x, _) in enumerate(points) if x >= rows), len(points) - 1)
        (x0, y0), (x1, y1) = points[max(0, right - 1)], points[max(1, right)]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)
