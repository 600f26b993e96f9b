"""What the Dockerfile says, as far as that can be tried without a container engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text("utf-8")


def is_healthy(port: int) -> bool:
    found = re.search(r"HEALTHCHECK.*?CMD (\[.*?\])\n", DOCKERFILE, re.DOTALL)
    assert found is not None
    program, *arguments = json.loads(found[1])
    assert program == "python3"
    environment = {"LLAMA_ARG_PORT": str(port)}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True)
    return done.returncode == 0


def test_the_health_check_asks_the_server_on_its_port(client):
    assert is_healthy(client.base_url.port)
    assert not is_healthy(1)
