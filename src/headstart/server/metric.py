"""One Prometheus metric: its name, what it means, and how it is read from a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Report = TypeVar("Report")
Sample = tuple[dict[str, str], float]
"""Labels and a value."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[Report]):
    """One metric: its samples are read from a report, a worker's for instance."""

    name: str
    kind: str  # counter or gauge
    help: str
    read: Callable[[Report], Iterable[Sample]]
    labels: tuple[str, ...] = ()

    def lines(self, report: Report) -> Iterator[str]:
        """In Prometheus's text format; none where there is no sample."""
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
