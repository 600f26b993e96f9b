"""GET /metrics: counters in Prometheus's text format, llama-server's names and ours.

docs/metrics.md is generated from `METRICS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.server.errors import ApiError
from headstart.server.model import service_of
from headstart.server.routing import Routes
from headstart.types.report import WorkerReport

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
    """Write every metric that has a sample."""
    return "".join(line for metric in METRICS for line in metric.lines(report))


def _value(name: str, path: str, help: str, label: str = "") -> Metric[WorkerReport]:
    """An attribute of the report; with a label, one sample for each of its entries."""
    read = attrgetter(path)
    labels = (label,) if label else ()
    return Metric(name, _kind(name), help, lambda report: _samples({}, read(report), label), labels)


def _each(name: str, path: str, help: str, label: str = "") -> Metric[WorkerReport]:
    """The same of each speculator's report."""
    read = attrgetter(path)

    def samples(report: WorkerReport) -> Iterable[Sample]:
        for one in report.speculators:
            yield from _samples({"speculator": one.name}, read(one), label)

    return Metric(name, _kind(name), help, samples, ("speculator", *([label] if label else [])))


def _kind(name: str) -> str:
    is_counter = name.endswith("_total") or name == "llamacpp:n_tokens_max"
    return "counter" if is_counter else "gauge"


def _samples(labels: dict[str, str], value: Any, label: str) -> Iterable[Sample]:
    if not label:
        return [(labels, float(value))]
    entries = value.items() if isinstance(value, Mapping) else enumerate(value)
    return [(labels | {label: str(key)}, count) for key, count in entries]


def _ratio(
    name: str, above: str, below: str, help: str, *, since_read: bool
) -> Metric[WorkerReport]:
    """A quotient of two counters, or of what they grew by since they were read; 0 of nothing."""

    def read(report: WorkerReport) -> Iterable[Sample]:
        now = [getattr(report.counters, one) for one in (above, below)]
        then = [getattr(report.last_read, one) if since_read else 0 for one in (above, below)]
        grown = [a - b for a, b in zip(now, then, strict=True)]
        if min(grown) < 0:
            grown = now  # a new engine counts from 0
        return [({}, grown[0] / grown[1] if grown[1] else 0.0)]

    return Metric(name, "gauge", help, read)


METRICS: tuple[Metric[WorkerReport], ...] = (
    _value(
        "llamacpp:prompt_tokens_total",
        "counters.prompt_tokens",
        "Prompt tokens decoded for requests that ended, cached ones excluded",
    ),
    _value(
        "llamacpp:prompt_tokens_cached_total",
        "counters.prompt_tokens_cached",
        "Prompt tokens of requests that ended, reused from the cache",
    ),
    _value(
        "llamacpp:prompt_seconds_total",
        "counters.prompt_seconds",
        "Seconds of reading the prompts of requests that ended",
    ),
    _value(
        "llamacpp:tokens_predicted_total",
        "counters.tokens_predicted",
        "Tokens generated for requests that ended",
    ),
    _value(
        "llamacpp:tokens_predicted_seconds_total",
        "counters.predicted_seconds",
        "Seconds of generating for requests that ended",
    ),
    _value("llamacpp:n_decode_total", "counters.num_decodes", "Decodes of the target model"),
    _value(
        "llamacpp:n_tokens_max",
        "counters.max_tokens_in_cache",
        "Most tokens of one request that ended, prompt and answer",
    ),
    _value(
        "llamacpp:spec_decode_num_draft_tokens_total", "drafts.num_drafted", "Draft tokens verified"
    ),
    _value(
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "drafts.num_accepted",
        "Draft tokens accepted",
    ),
    _value(
        "llamacpp:spec_decode_num_drafts_total", "drafts.num_drafts", "Verify steps with a draft"
    ),
    _value(
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
        "drafts.accepted_by_position",
        "Draft tokens accepted by position",
        "position",
    ),
    _ratio(
        "llamacpp:prompt_tokens_seconds",
        "prompt_tokens",
        "prompt_seconds",
        "Prompt tokens per second, average since the metrics were last read",
        since_read=True,
    ),
    _ratio(
        "llamacpp:predicted_tokens_seconds",
        "tokens_predicted",
        "predicted_seconds",
        "Generated tokens per second of a request, average since the metrics were last read",
        since_read=True,
    ),
    _value("llamacpp:requests_processing", "num_processing", "Requests that hold a slot"),
    _value("llamacpp:requests_deferred", "num_waiting", "Requests that wait for a slot"),
    _ratio(
        "llamacpp:n_busy_slots_per_decode",
        "busy_slots",
        "num_decodes",
        "Busy slots per decode, average since the start",
        since_read=False,
    ),
    _value(
        "headstart_padding_rows_total",
        "counters.padding_rows",
        "Rows that nobody needs, decoded because so wide a step takes less time",
    ),
    _value("headstart_requests_total", "counters.requests", "Requests that ended"),
    _value(
        "headstart_embedding_requests_total",
        "counters.embedding_requests",
        "Requests for embeddings or scores that ended",
    ),
    _value(
        "headstart_embedded_tokens_total",
        "counters.embedded_tokens",
        "Tokens of texts that were embedded or ranked",
    ),
    _value(
        "headstart_requests_failed_total",
        "counters.requests_failed",
        "Requests that ended with an error",
    ),
    _value(
        "headstart_near_ties_total",
        "counters.near_ties",
        "Tokens that were chosen by less than the number of rows in a decode changes a logit",
    ),
    _value(
        "headstart_preemptions_total",
        "counters.preemptions",
        "Requests put back into the queue because the cache was full or another tenant had no slot",
    ),
    _value(
        "headstart_quota_refusals_total",
        "refusals",
        "Requests refused with 429 because a tenant had its share",
        "quota",
    ),
    _value(
        "headstart_prompts_saved_total",
        "counters.prompts_saved",
        "Prompts that lost their place in the model's cache and were kept in main memory",
    ),
    _value(
        "headstart_prompts_restored_total",
        "counters.prompts_restored",
        "Prompts brought back from main memory",
    ),
    _value(
        "headstart_prompt_tokens_restored_total",
        "counters.prompt_tokens_restored",
        "Tokens of the prompts brought back from main memory",
    ),
    _value(
        "headstart_prompts_written_total",
        "disk.num_written",
        "Prompts written to the disk",
    ),
    _value(
        "headstart_prompts_loaded_total",
        "disk.num_restored",
        "Prompts read from the disk for a request",
    ),
    _value(
        "headstart_prompt_tokens_loaded_total",
        "disk.num_tokens_restored",
        "Tokens of the prompts read from the disk",
    ),
    _value("headstart_prompts_on_disk", "disk.num_prompts", "Prompts of this model on the disk"),
    _value("headstart_prompts_on_disk_bytes", "disk.num_bytes", "Bytes of these prompts"),
    _value("headstart_prompts_in_memory", "prompts_in_memory", "Prompts kept in main memory"),
    _value(
        "headstart_prompts_in_memory_bytes",
        "prompt_bytes_in_memory",
        "Bytes of the prompts kept in main memory",
    ),
    _value("headstart_engine_restarts_total", "engine_restarts", "Restarts of the engine process"),
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
    _value(
        "headstart_engine_memory_bytes",
        "memory_bytes",
        "Memory of the engine's process in RAM, mapped model files included",
    ),
    _each(
        "headstart_speculator_calls_total",
        "stats.num_calls",
        "Times a speculator was asked for a draft, per request and step",
    ),
    _each("headstart_drafts_offered_total", "stats.num_offered", "Drafts that a speculator made"),
    _each("headstart_drafts_total", "stats.num_drafts", "Drafts verified"),
    _each(
        "headstart_drafts_accepted_total",
        "stats.num_drafts_accepted",
        "Drafts of which a token was accepted",
    ),
    _each("headstart_draft_tokens_total", "stats.num_drafted", "Draft tokens verified"),
    _each("headstart_draft_tokens_accepted_total", "stats.num_accepted", "Draft tokens accepted"),
    _each(
        "headstart_rows_wasted_total",
        "stats.num_rows_wasted",
        "Rows of the target that held rejected draft tokens",
    ),
    _each(
        "headstart_draft_tokens_by_position_total",
        "stats.drafted_by_position",
        "Draft tokens verified by position in the draft",
        "position",
    ),
    _each(
        "headstart_draft_tokens_accepted_by_position_total",
        "stats.accepted_by_position",
        "Draft tokens accepted by position in the draft",
        "position",
    ),
    _each(
        "headstart_speculator_reasons_total",
        "stats.reasons",
        "Steps of a slot in which no draft of a speculator was verified, by its reason",
        "reason",
    ),
    _each(
        "headstart_speculator_seconds_total", "seconds", "Seconds in a speculator by phase", "phase"
    ),
    Metric(
        "headstart_speculator_failed",
        "gauge",
        "1 if the speculator was switched off by an error",
        lambda report: [
            ({"speculator": s.name}, float(bool(s.failure))) for s in report.speculators
        ],
        ("speculator",),
    ),
    _value(
        "headstart_steps_without_draft_total",
        "drafts.reasons",
        "Steps of a slot without a draft by reason",
        "reason",
    ),
)
