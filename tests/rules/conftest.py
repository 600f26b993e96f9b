"""A real server on the embedded models for documents and examples that talk to one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.rules.source import ROOT


@pytest.fixture(scope="session")
def server_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `headstart serve` writes to stderr, with the imports of all its processes."""
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="session")
def server_address(server_log: Path) -> Iterator[str]:
    """host:port of `headstart serve`, started once."""
    log = server_log
    serve = ["-m", "headstart", "serve", "--port", "0", "--context", "4096"]
    command = [sys.executable, "-X", "importtime", *serve]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with (
        log.open("w") as log_file,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log_file, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield announced_address(process.stdout) or pytest.fail(
                f"the server did not start:\n{log.read_text()}"
            )
        finally:
            process.terminate()
            process.communicate(timeout=30)


def announced_address(lines: Iterable[str]) -> str | None:
    """What the server prints when it is ready; None if it ends without."""
    matches = (re.search(r"http://((?:127\.0\.0\.1|0\.0\.0\.0):\d+)", line) for line in lines)
    return next((match[1] for match in matches if match), None)
