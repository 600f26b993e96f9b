"""Sets up the log of a process; the server and its engine process write the same one."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from headstart.config.fields import option
from headstart.types.errors import ConfigError

if TYPE_CHECKING:
    from headstart.config import Config

COLORS = {logging.DEBUG: "\x1b[2m", logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m"}
RESET = "\x1b[0m"


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


@dataclass(frozen=True, slots=True)
class Logging:
    """What a process needs to write the log."""

    level: int = logging.INFO
    config: LogConfig = field(default_factory=LogConfig)

    @classmethod
    def of(cls, config: Config) -> Logging:
        """What the flags of a server say."""
        server = config.server
        level = "debug" if server.verbose else server.log_level
        return cls(getattr(logging, level.upper()), config.log)

    def start(self) -> None:
        """Replace the process's handlers.

        Raises:
            ConfigError: the file cannot be written.
        """
        stream = sys.stdout if self.config.log_jsonl else sys.stderr
        handlers: list[logging.Handler] = [logging.StreamHandler(stream)]
        handlers[0].setFormatter(_formatter(self.config, has_colors=self._has_colors(stream)))
        if self.config.log_file:
            try:
                handlers.append(logging.FileHandler(self.config.log_file, encoding="utf-8"))
            except OSError as error:
                raise ConfigError(
                    f"--log-file {self.config.log_file} cannot be written: {error.strerror}; name "
                    "another file"
                ) from error
            handlers[1].setFormatter(_formatter(self.config, has_colors=False))
        logging.basicConfig(level=self.level, handlers=handlers, force=True)
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        logging.getLogger("uvicorn.error").setLevel(max(self.level, logging.WARNING))

    def _has_colors(self, stream: TextIO) -> bool:
        if self.config.log_jsonl:
            return False
        return stream.isatty() if self.config.log_colors == "auto" else self._wants_colors

    @property
    def _wants_colors(self) -> bool:
        return self.config.log_colors == "on"


def _formatter(config: LogConfig, *, has_colors: bool) -> logging.Formatter:
    if config.log_jsonl:
        return _JsonLines()
    parts = [
        "%(asctime)s" if config.log_timestamps else "",
        "%(levelname).1s %(name)s:" if config.log_prefix else "",
        "%(message)s",
    ]
    text = " ".join(filter(None, parts))
    return _Colored(text) if has_colors else logging.Formatter(text)


class _Colored(logging.Formatter):
    """Dims what is for debugging, colours what needs attention."""

    def format(self, record: logging.LogRecord) -> str:
        text, color = super().format(record), COLORS.get(record.levelno)
        return f"{color}{text}{RESET}" if color else text


class _JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "timestamp": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
