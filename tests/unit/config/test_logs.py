"""The log of a server."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/full")
def test_a_log_file_on_a_full_disk_is_named_once_and_stops_nothing() -> None:
    code = """
import logging
from headstart.config.logs import LogConfig, start_logging
start_logging(LogConfig(log_file="/dev/full"))
for word in ("first", "second"):
    logging.warning(word)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    with open("/dev/full", "w") as full:
        silent = subprocess.run([sys.executable, "-c", code], stderr=full, timeout=60)
    assert silent.returncode == 0
    one, named, two = done.stderr.splitlines()
    assert (one[-5:], two[-6:], done.returncode) == ("first", "second", 0)
    assert named.startswith("--log-file /dev/full: [Errno 28]")
