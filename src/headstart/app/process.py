"""The process around a server: its log, priority and CPUs, and the router that started it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import MutableMapping
from typing import Any

from headstart.config import Config, EngineConfig
from headstart.config.logs import start_logging
from headstart.engine.machine import cores, default_threads
from headstart.structures.system import allowed_cpus, bind_threads
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)


def prepare_engine_process(config: Config) -> None:
    """Set the log, the priority and the CPUs of this process, before a model is loaded."""
    start_logging(config.log)
    priority = config.engine.prio
    if priority:
        try:
            # llama.cpp's niceness for each priority
            os.setpriority(os.PRIO_PROCESS, 0, {-1: 5, 1: -5, 2: -10, 3: -20}[priority])
        except OSError as error:
            log.warning("--prio %d is not possible for this user: %s", priority, error.strerror)
    if cpus := cpus_of(config.engine):
        os.sched_setaffinity(0, cpus)
    if has_core_each(config.engine):
        bind_threads(cores())


def has_core_each(config: EngineConfig) -> bool:
    """Whether the engine has one thread per known core, without other placement settings. With
    fewer threads, two servers would be bound to the same cores.
    """
    threads = config.threads or default_threads()
    is_chosen = config.numa or {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"} & {*os.environ}
    if is_chosen or allowed_cpus() is None or len(cores()) < 2 or cores()[0] & cores()[1]:
        return False
    return threads == (config.threads_batch or threads) == len(cores())


def cpus_of(config: EngineConfig) -> frozenset[int]:
    """CPUs of --cpu-mask and --cpu-range; empty means all.

    Raises:
        ConfigError: not a mask, not a range, or CPUs that this process may not use.
    """
    wanted: set[int] = set()
    if config.cpu_mask:
        if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]+", config.cpu_mask):
            raise ConfigError(f"--cpu-mask is {config.cpu_mask!r} but must be hexadecimal, as ff")
        mask = int(config.cpu_mask, 16)
        wanted |= {number for number in range(mask.bit_length()) if mask >> number & 1}
    if config.cpu_range:
        match = re.fullmatch(r"(\d{1,4})-(\d{1,4})", config.cpu_range)
        if not match or int(match[1]) > int(match[2]):
            raise ConfigError(f"--cpu-range is {config.cpu_range!r} but must be as 0-3")
        wanted |= set(range(int(match[1]), int(match[2]) + 1))
    if not wanted:
        return frozenset()
    if (allowed := allowed_cpus()) is None:
        raise ConfigError("--cpu-mask and --cpu-range need Linux; leave them out")
    if missing := sorted(wanted - allowed):
        raise ConfigError(
            f"--cpu-mask or --cpu-range names CPU {missing[0]}, which this process may not use; "
            f"it has {len(allowed)}"
        )
    return frozenset(wanted)


class Parent:
    """The router that started this server, if any: receives its state, and ends it by ending.

    Each holds one end of a socket pair. We send lines of JSON; the router's end closes when it
    ends, for whatever reason. Without a router all methods do nothing.
    """

    def __init__(self, connection: socket.socket | None = None) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> Parent:
        """The parent named in the environment; removes the variable, which is only for us."""
        number = environment.pop("HEADSTART_ROUTER", "")  # of the open socket
        if not number.isdigit():
            return cls()
        connection = socket.socket(fileno=int(number))
        connection.set_inheritable(False)
        return cls(connection)

    @property
    def is_there(self) -> bool:
        return self._connection is not None

    def tell(self, state: str, **more: Any) -> None:
        """Report the state of this server to the router."""
        if self._connection is None:
            return
        line = json.dumps({"state": state, **more}).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # the router ended, which `follow` notices
            self._connection.sendall(line)

    def follow(self) -> None:
        """End as after SIGTERM when the router ends."""
        if self._connection is not None:
            threading.Thread(target=self._wait, name="headstart-router", daemon=True).start()

    def _wait(self) -> None:
        assert self._connection is not None
        with contextlib.suppress(OSError):
            while self._connection.recv(4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
