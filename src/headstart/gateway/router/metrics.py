"""GET /metrics of the router itself, in Prometheus's text format; with ?model= a model answers.

`METRICS` is the only list of them; docs/metrics.md is made from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from headstart.gateway.router.broadcast import Broadcast
from headstart.gateway.router.pooled_model import LOADED, LOADING, SLEEPING, UNLOADED, PooledModel
from headstart.server.metrics import Metric, Sample

STATES = (UNLOADED, LOADING, LOADED, SLEEPING)


class Observed(Protocol):
    """What is read of a pool of models."""

    events: Broadcast
    models: dict[str, PooledModel]

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a model."""


@dataclass(frozen=True, slots=True)
class RouterReport:
    """How the router's models are doing."""

    models: list[PooledModel]
    num_waiting: int
    told: Counter[tuple[str, str]]


def report_of(pool: Observed) -> RouterReport:
    """What a pool of models says now."""
    return RouterReport(list(pool.models.values()), pool.num_waiting, pool.events.num_told)


def render(report: RouterReport) -> str:
    """Write every metric."""
    return "".join(line for metric in METRICS for line in metric.lines(report))


def _by_state(report: RouterReport) -> Iterable[Sample]:
    found = Counter(model.status for model in report.models)
    return [({"status": state}, found[state]) for state in STATES]


def _running(report: RouterReport) -> Iterable[Sample]:
    return [({"model": one.name}, one.num_requests) for one in report.models if one.is_running]


def _held(report: RouterReport) -> Iterable[Sample]:
    return [
        ({"model": one.name, "device": device}, size)
        for one in report.models
        if one.is_running
        for device, size in one.held.items()
    ]


METRICS: list[Metric[RouterReport]] = [
    Metric(
        "headstart_router_models",
        "gauge",
        "Models by state.",
        _by_state,
        ("status",),
    ),
    Metric(
        "headstart_router_requests_running",
        "gauge",
        "Requests that a model answers now.",
        _running,
        ("model",),
    ),
    Metric(
        "headstart_router_requests_waiting",
        "gauge",
        "Requests that wait until their model is loaded.",
        lambda report: [({}, report.num_waiting)],
    ),
    Metric(
        "headstart_router_model_bytes",
        "gauge",
        "What a running model is expected to take of a device.",
        _held,
        ("model", "device"),
    ),
    Metric(
        "headstart_router_loads_total",
        "counter",
        "Models whose loading began.",
        lambda report: [({}, report.told["model_status", LOADING])],
    ),
    Metric(
        "headstart_router_unloads_total",
        "counter",
        "Models that ended, for whatever reason.",
        lambda report: [({}, report.told["status_change", UNLOADED])],
    ),
    Metric(
        "headstart_router_downloads_total",
        "counter",
        "Models downloaded through the API.",
        lambda report: [({}, report.told["download_finished", ""])],
    ),
]
