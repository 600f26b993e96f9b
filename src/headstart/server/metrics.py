"""GET /metrics: counters in Prometheus's text format, llama-server's names and ours.

`METRICS` is the only list of them; docs/metrics.md is made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.errors import ApiError
from headstart.server.metric import Metric, Sample
from headstart.server.model import service_of
from headstart.server.routing import Routes, get
from headstart.types.report import SpeculatorReport, WorkerReport

router = Routes()


@get(router, "/metrics", answer="counters and gauges in Prometheus' text format")
async def metrics(http: HttpRequest) -> Response:
    """Report all counters since the start."""
    service = service_of(http)
    if not service.config.metrics:
        raise ApiError(501, "this server was started with --no-metrics")
    text = render(await service.worker.report())
    headers = {"Process-Start-Time-Unix": str(int(service.started_at))}
    return Response(text, headers=headers, media_type="text/plain; version=0.0.4")


def render(report: WorkerReport) -> str:
    """Write every metric that has a sample."""
    return "".join(line for metric in METRICS for line in metric.lines(report))


def _now(name: str) -> Callable[[WorkerReport], Iterable[Sample]]:
    return lambda report: [({}, getattr(report, name))]


def _counter(name: str) -> Callable[[WorkerReport], Iterable[Sample]]:
    return lambda report: [({}, getattr(report.counters, name))]


def _drafts(name: str) -> Callable[[WorkerReport], Iterable[Sample]]:
    return lambda report: [({}, getattr(report.drafts, name))]


def _ratio(above: str, below: str) -> Callable[[WorkerReport], Iterable[Sample]]:
    def read(report: WorkerReport) -> Iterable[Sample]:
        divisor = getattr(report.counters, below)
        return [({}, getattr(report.counters, above) / divisor if divisor else 0.0)]

    return read


def _each(read: Callable[[SpeculatorReport], float]) -> Callable[[WorkerReport], Iterable[Sample]]:
    return lambda report: [({"speculator": one.name}, read(one)) for one in report.speculators]


def _positions(
    read: Callable[[SpeculatorReport], Iterable[int]],
) -> Callable[[WorkerReport], Iterable[Sample]]:
    return lambda report: [
        ({"speculator": one.name, "position": str(position)}, count)
        for one in report.speculators
        for position, count in enumerate(read(one))
    ]


def _counterfactual(name: str) -> Callable[[WorkerReport], Iterable[Sample]]:
    """Of each speculator alone: by fixed length, and in hindsight."""

    def read(report: WorkerReport) -> Iterable[Sample]:
        told = report.control.get("counterfactual") or {"speculators": {}}
        return [
            ({"speculator": speculator, "length": length}, speed[name])
            for speculator, one in told["speculators"].items()
            for length, speed in {**one["by_length"], "hindsight": one["hindsight"]}.items()
            if speed[name] is not None
        ]

    return read


def _reasons(report: WorkerReport) -> Iterable[Sample]:
    return [
        ({"speculator": one.name, "reason": reason}, count)
        for one in report.speculators
        for reason, count in one.stats.reasons.items()
    ]


def _seconds(report: WorkerReport) -> Iterable[Sample]:
    return [
        ({"speculator": one.name, "phase": phase}, seconds)
        for one in report.speculators
        for phase, seconds in one.seconds.items()
    ]


_SPECULATOR = ("speculator",)
_POSITION = ("speculator", "position")

METRICS: tuple[Metric[WorkerReport], ...] = (
    Metric(
        "llamacpp:prompt_tokens_total",
        "counter",
        "Prompt tokens decoded for requests that ended, cached ones excluded",
        _counter("prompt_tokens"),
    ),
    Metric(
        "llamacpp:prompt_tokens_cached_total",
        "counter",
        "Prompt tokens of requests that ended, reused from the cache",
        _counter("prompt_tokens_cached"),
    ),
    Metric(
        "llamacpp:prompt_seconds_total",
        "counter",
        "Seconds of reading the prompts of requests that ended",
        _counter("prompt_seconds"),
    ),
    Metric(
        "llamacpp:tokens_predicted_total",
        "counter",
        "Tokens generated for requests that ended",
        _counter("tokens_predicted"),
    ),
    Metric(
        "llamacpp:tokens_predicted_seconds_total",
        "counter",
        "Seconds of generating for requests that ended",
        _counter("predicted_seconds"),
    ),
    Metric(
        "llamacpp:n_decode_total", "counter", "Decodes of the target model", _counter("num_decodes")
    ),
    Metric(
        "llamacpp:n_tokens_max",
        "counter",
        "Most tokens of one request that ended, prompt and answer",
        _counter("max_tokens_in_cache"),
    ),
    Metric(
        "llamacpp:spec_decode_num_draft_tokens_total",
        "counter",
        "Draft tokens verified",
        _drafts("num_drafted"),
    ),
    Metric(
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "counter",
        "Draft tokens accepted",
        _drafts("num_accepted"),
    ),
    Metric(
        "llamacpp:spec_decode_num_drafts_total",
        "counter",
        "Verify steps with a draft",
        _drafts("num_drafts"),
    ),
    Metric(
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
        "counter",
        "Draft tokens accepted by position",
        lambda report: [
            ({"position": str(i)}, count)
            for i, count in enumerate(report.drafts.accepted_by_position)
        ],
        ("position",),
    ),
    Metric(
        "llamacpp:prompt_tokens_seconds",
        "gauge",
        "Prompt tokens per second, average since the start",
        _ratio("prompt_tokens", "prompt_seconds"),
    ),
    Metric(
        "llamacpp:predicted_tokens_seconds",
        "gauge",
        "Generated tokens per second of a request, average since the start",
        _ratio("tokens_predicted", "predicted_seconds"),
    ),
    Metric(
        "llamacpp:requests_processing", "gauge", "Requests that hold a slot", _now("num_processing")
    ),
    Metric(
        "llamacpp:requests_deferred", "gauge", "Requests that wait for a slot", _now("num_waiting")
    ),
    Metric(
        "llamacpp:n_busy_slots_per_decode",
        "gauge",
        "Busy slots per decode, average since the start",
        _ratio("busy_slots", "num_decodes"),
    ),
    Metric(
        "headstart_padding_rows_total",
        "counter",
        "Rows that nobody needs, decoded because so wide a step takes less time",
        _counter("padding_rows"),
    ),
    Metric("headstart_requests_total", "counter", "Requests that ended", _counter("requests")),
    Metric(
        "headstart_embedding_requests_total",
        "counter",
        "Requests for embeddings or scores that ended",
        _counter("embedding_requests"),
    ),
    Metric(
        "headstart_embedded_tokens_total",
        "counter",
        "Tokens of texts that were embedded or ranked",
        _counter("embedded_tokens"),
    ),
    Metric(
        "headstart_requests_failed_total",
        "counter",
        "Requests that ended with an error",
        _counter("requests_failed"),
    ),
    Metric(
        "headstart_preemptions_total",
        "counter",
        "Requests put back into the queue because the cache was full",
        _counter("preemptions"),
    ),
    Metric(
        "headstart_prompts_saved_total",
        "counter",
        "Prompts that lost their place in the model's cache and were kept in main memory",
        _counter("prompts_saved"),
    ),
    Metric(
        "headstart_prompts_restored_total",
        "counter",
        "Prompts brought back from main memory",
        _counter("prompts_restored"),
    ),
    Metric(
        "headstart_prompt_tokens_restored_total",
        "counter",
        "Tokens of the prompts brought back from main memory",
        _counter("prompt_tokens_restored"),
    ),
    Metric(
        "headstart_prompts_in_memory",
        "gauge",
        "Prompts kept in main memory",
        _now("prompts_in_memory"),
    ),
    Metric(
        "headstart_prompts_in_memory_bytes",
        "gauge",
        "Bytes of the prompts kept in main memory",
        _now("prompt_bytes_in_memory"),
    ),
    Metric(
        "headstart_engine_restarts_total",
        "counter",
        "Restarts of the engine process",
        _now("engine_restarts"),
    ),
    Metric(
        "headstart_step_seconds_total",
        "counter",
        "Seconds of steps: in the target model, before it (drafting), and after it",
        lambda report: [
            ({"part": part}, getattr(report.counters, f"{part}_seconds"))
            for part in ("target", "draft", "other")
        ],
        ("part",),
    ),
    Metric(
        "headstart_engine_memory_bytes",
        "gauge",
        "Memory of the engine's process in RAM, mapped model files included",
        _now("memory_bytes"),
    ),
    Metric(
        "headstart_counterfactual_tokens_per_second",
        "gauge",
        "What a speculator alone would have given on the texts of every 16th request, at the "
        "prices of one request alone: by fixed length, and in hindsight",
        _counterfactual("tokens_per_second"),
        ("speculator", "length"),
    ),
    Metric(
        "headstart_counterfactual_error",
        "gauge",
        "Standard error of that, in tokens per second",
        _counterfactual("error"),
        ("speculator", "length"),
    ),
    Metric(
        "headstart_counterfactual_speedup",
        "gauge",
        "The same relative to no drafts",
        _counterfactual("speedup"),
        ("speculator", "length"),
    ),
    Metric(
        "headstart_speculator_calls_total",
        "counter",
        "Times a speculator was asked for a draft, per request and step",
        _each(lambda one: one.stats.num_calls),
        _SPECULATOR,
    ),
    Metric(
        "headstart_drafts_offered_total",
        "counter",
        "Drafts that a speculator made",
        _each(lambda one: one.stats.num_offered),
        _SPECULATOR,
    ),
    Metric(
        "headstart_drafts_total",
        "counter",
        "Drafts verified",
        _each(lambda one: one.stats.num_drafts),
        _SPECULATOR,
    ),
    Metric(
        "headstart_drafts_accepted_total",
        "counter",
        "Drafts of which a token was accepted",
        _each(lambda one: one.stats.num_drafts_accepted),
        _SPECULATOR,
    ),
    Metric(
        "headstart_draft_tokens_total",
        "counter",
        "Draft tokens verified",
        _each(lambda one: one.stats.num_drafted),
        _SPECULATOR,
    ),
    Metric(
        "headstart_draft_tokens_accepted_total",
        "counter",
        "Draft tokens accepted",
        _each(lambda one: one.stats.num_accepted),
        _SPECULATOR,
    ),
    Metric(
        "headstart_rows_wasted_total",
        "counter",
        "Rows of the target that held rejected draft tokens",
        _each(lambda one: one.stats.num_rows_wasted),
        _SPECULATOR,
    ),
    Metric(
        "headstart_draft_tokens_by_position_total",
        "counter",
        "Draft tokens verified by position in the draft",
        _positions(lambda one: one.stats.drafted_by_position),
        _POSITION,
    ),
    Metric(
        "headstart_draft_tokens_accepted_by_position_total",
        "counter",
        "Draft tokens accepted by position in the draft",
        _positions(lambda one: one.stats.accepted_by_position),
        _POSITION,
    ),
    Metric(
        "headstart_speculator_reasons_total",
        "counter",
        "Steps of a slot in which no draft of a speculator was verified, by its reason",
        _reasons,
        ("speculator", "reason"),
    ),
    Metric(
        "headstart_speculator_seconds_total",
        "counter",
        "Seconds in a speculator by phase",
        _seconds,
        ("speculator", "phase"),
    ),
    Metric(
        "headstart_speculator_failed",
        "gauge",
        "1 if the speculator was switched off by an error",
        _each(lambda one: float(bool(one.failure))),
        _SPECULATOR,
    ),
    Metric(
        "headstart_steps_without_draft_total",
        "counter",
        "Steps of a slot without a draft by reason",
        lambda report: [
            ({"reason": reason}, count) for reason, count in report.drafts.reasons.items()
        ],
        ("reason",),
    ),
)
