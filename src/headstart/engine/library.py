"""The only entry to libllama: import, version, logging.

libllama aborts the process on many mistakes (see the checks in `context.py` and `model.py`), so
nothing outside this folder calls it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # otherwise an abort runs a debugger first
# Threads wait for each other hundreds of times per step. By default they spin so long that two
# programs on the same cores stall each other; with this they sleep sooner.
if not os.environ.get("OMP_WAIT_POLICY"):
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

from headstart.engine import binding  # reads these variables on load
from headstart.engine.find_library import remedy
from headstart.structures.system import use_any_core
from headstart.types.errors import ConfigError, HeadstartError

log = logging.getLogger("headstart.libllama")
E = TypeVar("E", bound=HeadstartError)
api = binding

found = api.llama_version().decode() if hasattr(api._lib, "llama_version") else "older"
if found != api.VERSION:
    raise ConfigError(
        f"the libllama in {api.folder} is {found}, but this Headstart needs {api.VERSION} exactly; "
        f"{remedy()}"
    )

_recent_errors: deque[str] = deque(maxlen=8)
_partial: list[str] = []
_level = logging.DEBUG
_lock = threading.Lock()
_has_told_full = False


def _on_log(level: int, text: bytes, _user: object) -> None:
    """Log libllama's pieces of lines; its info, hundreds of lines per load, is our debug level."""
    global _level, _has_told_full
    levels = {3: logging.WARNING, 4: logging.ERROR}
    with _lock:
        if level != 5:  # 5 continues the previous line
            _level = levels.get(level, logging.DEBUG)
        _partial.append(text.decode("utf-8", "replace"))
        if not _partial[-1].endswith("\n"):
            return
        line = "".join(_partial).rstrip()
        _partial.clear()
    # no free cells for a batch: not an error; `launch` raises and the scheduler makes room
    full = ("failed to find a memory slot for batch", "failed to prepare attention")
    if any(words in line for words in full):
        _level = logging.DEBUG
        if not _has_told_full:
            _has_told_full = True
            log.info(
                "the cache is full (said once): drafts and idle prefixes give way, then the "
                "youngest request waits; "
                "a larger --context avoids it"
            )
    # heads left out on purpose; images, which have fewer positions than cells; and contexts longer
    # than trained, of which a request may have less (app/assemble.py warns if not)
    known = ("model has unused tensor", "non-consecutive token position", "context overflow")
    if any(words in line for words in known):
        _level = logging.DEBUG
    if _level >= logging.ERROR:
        _recent_errors.append(line)
    if line.strip(". "):
        log.log(logging.DEBUG if _is_muted else _level, "%s", line)


log_callback = api.llama_log_callback(_on_log)  # libllama keeps the pointer: it must live as long
_started = False
_is_muted = False


def start(numa: str | None = None) -> None:
    """Initialise libllama once; later calls do nothing. `numa`: strategy for several NUMA nodes."""
    global _started
    if not _started:
        api.llama_log_set(log_callback, None)
        api.llama_backend_init()
        if numa:
            api.llama_numa_init({"distribute": 1, "isolate": 2, "numactl": 3}[numa])
        if api.ggml_backend_dev_count() > 1:  # not only the CPU, which may not be used
            use_any_core()
        _started = True


@contextmanager
def muted() -> Iterator[None]:
    """Log libllama's messages at debug level only: the same will be reported again."""
    global _is_muted
    _is_muted = True
    try:
        yield
    finally:
        _is_muted = False


def take_errors() -> str:
    """Error lines of libllama since the last call, joined; for our own messages."""
    lines = [
        line.split(": ", 1)[-1] if line.startswith("llama_") else line for line in _recent_errors
    ]
    _recent_errors.clear()
    return "; ".join(dict.fromkeys(lines))


def libllama_error(kind: type[E], words: str) -> E:
    """An error with the reason that libllama logged."""
    return kind(f"{words}: {take_errors() or 'libllama gave no reason'}")


def version() -> str:
    """Version of libllama, and the release of llama-cpp-python that contains it."""
    return f"libllama {api.VERSION} (llama-cpp-python {api.RELEASE})"


def system_info() -> str:
    """CPU features and backends that libllama was built with."""
    start()
    return str(api.llama_print_system_info(), "utf-8").strip()
