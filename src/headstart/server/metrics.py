"""GET /metrics: counters in Prometheus's text format, with llama-server's names and ours.

`METRICS` is read from metrics.txt; docs/metrics.md is generated from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from operator import attrgetter
from typing import Any, Generic, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.errors import ApiError
from headstart.server.routing import Routes
from headstart.server.service import service_of
from headstart.types.report import WorkerReport

Report = TypeVar("Report")
Sample = tuple[dict[str, str], float]
"""Labels and a value."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[Report]):
    """A metric whose samples are read from a report."""

    name: str
    help: str
    read: Callable[[Report], Iterable[Sample]]
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        is_counter = self.name.endswith("_total") or self.name == "llamacpp:n_tokens_max"
        return "counter" if is_counter else "gauge"

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


routes = Routes()


@routes.get("/metrics", answer="counters and gauges in Prometheus' text format")
async def metrics(http: HttpRequest) -> Response:
    """Report all counters since the start."""
    service = service_of(http)
    if not service.config.metrics:
        raise ApiError(501, "this server was started with --no-metrics")
    report = await service.worker.report()
    text = render(
        replace(report, refusals=http.app.state.refusals, last_read=service.counters_read)
    )
    service.counters_read = replace(report.counters)
    headers = {"Process-Start-Time-Unix": str(int(service.started_at))}
    return Response(text, headers=headers, media_type="text/plain; version=0.0.4")


def render(report: WorkerReport) -> str:
    """Format every metric that has a sample."""
    return "".join(line for metric in METRICS for line in metric.lines(report))


def _read_table(text: str) -> Iterator[Metric[WorkerReport]]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for head, help in zip(lines[::2], lines[1::2], strict=True):
        name, source = head.split(maxsplit=1)
        name, *labels = re.findall(r"[\w:]+", name)
        yield Metric(name, help.strip(), _reader(source, labels), tuple(labels))


def _reader(source: str, labels: list[str]) -> Callable[[WorkerReport], Iterable[Sample]]:
    above, _, below = source.partition(" / ")
    if below:
        counter, *since_read = below.split(maxsplit=1)
        return lambda report: [({}, _quotient(report, (above, counter), bool(since_read)))]
    read = attrgetter(source)
    if labels[:1] != ["speculator"]:
        return lambda report: _samples({}, read(report), labels)

    def each(report: WorkerReport) -> Iterable[Sample]:
        for one in report.speculators:
            yield from _samples({"speculator": one.name}, read(one), labels[1:])

    return each


def _samples(own: dict[str, str], value: Any, labels: Sequence[str]) -> Iterable[Sample]:
    if not labels:
        return [(own, float(value))]
    entries = value.items() if isinstance(value, Mapping) else enumerate(value)
    return [(own | {labels[0]: str(key)}, count) for key, count in entries]


def _quotient(report: WorkerReport, names: tuple[str, str], is_since_read: bool) -> float:
    """Quotient of two counters, or of their growth since the last read; 0 if both are."""
    now = [getattr(report.counters, one) for one in names]
    then = [getattr(report.last_read, one) if is_since_read else 0 for one in names]
    grown = [a - b for a, b in zip(now, then, strict=True)]
    if min(grown) < 0:
        grown = now  # a new engine counts from 0
    return grown[0] / grown[1] if grown[1] else 0.0


METRICS = tuple(_read_table(files(__package__).joinpath("metrics.txt").read_text("utf-8")))
