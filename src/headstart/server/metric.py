"""A Prometheus metric: its name, its help, and how to read it from a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Report = TypeVar("Report")
Sample = tuple[dict[str, str], float]
"""Labels and a value."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[Report]):
    """A metric whose samples are read from a report."""

    name: str
    kind: str  # counter or gauge
    help: str
    read: Callable[[Report], Iterable[Sample]]
    labels: tuple[str, ...] = ()

    def lines(self, report: Report) -> Iterator[str]:
        """The lines in Prometheus's text format; none without samples."""
        samples = list(self.read(report))
        if samples:
            yield f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"
        for labels, value in samples:
            inside = ",".join(f'{name}="{_escape(text)}"' for name, text in labels.items())
            yield (
                f"{self.name}{{{inside}}} {value:.15g}\n"
                if inside
                else f"{self.name} {value:.15g}\n"
            )


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
