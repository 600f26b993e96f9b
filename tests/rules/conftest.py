"""A real server on the embedded models for documents and examples that talk to one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.rules.source import ROOT


@pytest.fixture(scope="session")
def server_address() -> Iterator[str]:
    """host:port of `headstart serve`, started once."""
    command = [sys.executable, "-m", "headstart", "serve", "--port", "0", "--context", "4096"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield _announced_address(process)
        finally:
            process.terminate()
            process.communicate(timeout=30)


def _announced_address(process: subprocess.Popen[str]) -> str:
    """Read the server's output until it says where it listens, which it does when it is ready."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if match := re.search(r"http://(127\.0\.0\.1:\d+)", line):
            return match[1]
    pytest.fail("the server ended without saying where it listens:\n" + "".join(seen))
