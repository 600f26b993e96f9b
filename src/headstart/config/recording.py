"""Settings of recorded texts, from which `headstart distill` learns."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.config.fields import check_ranges, option


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingConfig:
    """Which answers are written to files, and for how long they stay."""

    record_texts: str | None = option(
        None,
        "folder in which prompts and answers are kept for headstart distill (docs/distill.md); "
        "without API keys those of all requests but with 'store': false",
    )
    record_tenants: str | None = option(
        None,
        "with API keys: keys, or tenants of --tenant-header, separated by commas, whose requests "
        "are recorded; all for every one. Others only with 'store': true in the request",
        is_secret=True,
    )
    record_mb: int = option(1024, "MiB that recorded texts may take; the oldest make room", least=1)
    record_days: int = option(30, "days after which recorded texts are deleted", least=1)

    def __post_init__(self) -> None:
        check_ranges(self)
