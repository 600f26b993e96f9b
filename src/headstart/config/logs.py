"""The log of a process; the server and its engine process write the same one."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass

from headstart.config.fields import option
from headstart.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The log of the server and of its engine process."""

    log_level: str = option(
        "info", "how much to log", choices=("debug", "info", "warning", "error")
    )
    log_file: str | None = option(None, "also write the log to this file")
    log_colors: str = option(
        "auto", "colours in the log; auto: on a terminal", choices=("auto", "on", "off")
    )
    log_prefix: bool = option(True, "start lines with their level and module")
    log_timestamps: bool = option(True, "start lines with the time")
    log_jsonl: bool = option(
        False, "write the log to standard output, one JSON object per line, without colours"
    )


def start_logging(log: LogConfig) -> None:
    """Replace the log handlers of this process.

    Raises:
        ConfigError: the file cannot be written.
    """
    level = getattr(logging, log.log_level.upper())
    stream = sys.stdout if log.log_jsonl else sys.stderr
    has_colors = stream.isatty() if log.log_colors == "auto" else log.log_colors == "on"
    handlers: list[logging.Handler] = [logging.StreamHandler(stream)]
    handlers[0].setFormatter(_Formatter(log, has_colors=has_colors))
    if log.log_file:
        try:
            handlers.append(_LogFile(log.log_file, encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"--log-file {log.log_file} cannot be written: {error.strerror}; name another file"
            ) from error
        handlers[1].setFormatter(_Formatter(log, has_colors=False))
    logging.basicConfig(level=level, handlers=handlers, force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    for name in ("uvicorn.error", "httpx2"):  # httpx2 logs each request to the hub
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


class _LogFile(logging.FileHandler):
    """Says once that it cannot be written, for instance because the disk is full."""

    has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.has_failed:
            self.has_failed = True
            said = f"--log-file {self.baseFilename}: {sys.exception()}"
            with suppress(OSError):  # of standard error on the same disk
                print(said, file=sys.stderr)


class _Formatter(logging.Formatter):
    """Lines of text, or with --log-jsonl a JSON object per line."""

    def __init__(self, config: LogConfig, *, has_colors: bool) -> None:
        parts = [
            "%(asctime)s" if config.log_timestamps else "",
            "%(levelname).1s %(name)s:" if config.log_prefix else "",
            "%(message)s",
        ]
        super().__init__(" ".join(filter(None, parts)))
        self._is_json = config.log_jsonl
        # dim, yellow, red
        codes = {logging.DEBUG: 2, logging.WARNING: 33, logging.ERROR: 31}
        self._codes = codes if has_colors else {}

    def format(self, record: logging.LogRecord) -> str:
        if not self._is_json:
            text, code = super().format(record), self._codes.get(record.levelno)
            return f"\x1b[{code}m{text}\x1b[0m" if code else text
        entry = {
            "timestamp": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
