"""Where the log goes and what its lines look like."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.config_fields import option

__all__ = ["LogConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The log of the server and of its engine process."""

    log_file: str | None = option(None, "write the log to this file too")
    log_colors: str = option(
        "auto", "colours in the log; auto: on a terminal", choices=("auto", "on", "off")
    )
    log_prefix: bool = option(True, "begin lines with their level and where they come from")
    log_timestamps: bool = option(True, "begin lines with the time")
    log_jsonl: bool = option(
        False, "write the log to standard output, one JSON object a line, without colours"
    )
