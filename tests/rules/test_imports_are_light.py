"""Importing the package or its command line loads no heavy library."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.server.server_process import Server

HEAVY = (
    "llama_cpp",
    "llguidance",
    "starlette",
    "uvicorn",
    "pydantic",
    "jinja2",
    "huggingface_hub",
    "gguf",
    "rich",
    "ray",
    "torch",
)


@pytest.mark.parametrize(
    "statement",
    [
        "import headstart.testing",
        "import headstart.speculators",
        "from headstart.app.cli.main import main; main(['serve', '--help'])",
    ],
)
def test_an_import_is_light(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_plain_server_imports_no_extras(server: Server) -> None:
    imported = "".join(server.lines)
    assert "headstart.server.app" in imported  # of the web process
    assert "headstart.worker.loop" in imported  # of the engine process
    assert "headstart.extras" not in imported
