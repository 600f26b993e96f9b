"""GET /metrics of the router itself, in Prometheus's text format; with ?model= a model answers.

`METRICS` is the only list of them; docs/metrics.md is made from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headstart.gateway.router.pool import Pool
from headstart.gateway.router.pooled_model import LOADED, LOADING, SLEEPING, UNLOADED
from headstart.server.metrics import Metric, Sample


def render(pool: Pool) -> str:
    """Write every metric."""
    return "".join(line for metric in METRICS for line in metric.lines(pool))


def _by_state(pool: Pool) -> Iterable[Sample]:
    found = Counter(model.status for model in pool.models.values())
    return [({"status": one}, found[one]) for one in (UNLOADED, LOADING, LOADED, SLEEPING)]


def _requests(pool: Pool) -> Iterable[Sample]:
    return [({"model": one.name}, one.num_requests) for one in pool.running()]


def _held(pool: Pool) -> Iterable[Sample]:
    return [
        ({"model": one.name, "device": device}, size)
        for one in pool.running()
        for device, size in one.held.items()
    ]


def _counted(name: str, event: str, status: str, help: str) -> Metric[Pool]:
    """Number of events with this status."""
    key = event, status
    return Metric(name, help, lambda pool: [({}, pool.num_told[key])])


METRICS: list[Metric[Pool]] = [
    Metric("headstart_router_models", "Models by state.", _by_state, ("status",)),
    Metric(
        "headstart_router_requests_running",
        "Requests that a model answers now.",
        _requests,
        ("model",),
    ),
    Metric(
        "headstart_router_requests_waiting",
        "Requests that wait until their model is loaded.",
        lambda pool: [({}, pool.num_waiting)],
    ),
    Metric(
        "headstart_router_model_bytes",
        "What a running model is expected to take of a device.",
        _held,
        ("model", "device"),
    ),
    _counted(
        "headstart_router_loads_total", "model_status", LOADING, "Models whose loading began."
    ),
    _counted(
        "headstart_router_unloads_total",
        "status_change",
        UNLOADED,
        "Models that ended, for whatever reason.",
    ),
    _counted(
        "headstart_router_downloads_total",
        "download_finished",
        "",
        "Models downloaded through the API.",
    ),
]
