"""`headstart rpc-worker` as a process, where the RPC backend can be had."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests.server.server_process import environment

from headstart.engine.library import api
from headstart.extras.rpc.backend import plugin_file
from headstart.extras.rpc.build import build
from headstart.types.errors import ConfigError

COMMAND = (sys.executable, "-m", "headstart", "rpc-worker")
SOURCE = "LLAMA_CPP_SOURCE"
# where `headstart rpc-build` puts the plug-in; the tests themselves have a cache of their own
OWN_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def prepare(cache: Path) -> None:
    """Put the RPC backend where `headstart` looks for it, or skip."""
    if api.llama_supports_rpc():
        return
    built = plugin_file(OWN_CACHE / "headstart/rpc")
    if built.exists():
        (cache / "rpc").mkdir(parents=True, exist_ok=True)
        shutil.copy(built, cache / "rpc")
    elif source := os.environ.get(SOURCE):
        try:
            build(Path(source), cache / "rpc")
        except ConfigError as error:
            pytest.skip(f"the RPC plug-in cannot be built: {error}")
    else:
        pytest.skip(f"no RPC backend: run `headstart rpc-build`, or set {SOURCE}")


class RpcWorker:
    """A worker on loopback; `start` again after `kill` has the same port."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.log = (self.cache / f"worker-{self.port}.log").open("w")
        self.process = subprocess.Popen(
            [*COMMAND, "--port", str(self.port), "--threads", "1"],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=environment(self.cache),
        )
        for _ in range(600):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self.process.poll() is not None:
                break
            threading.Event().wait(0.05)
        raise AssertionError(f"the worker does not listen: {Path(self.log.name).read_text()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()
