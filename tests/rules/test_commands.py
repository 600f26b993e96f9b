"""The commands of README and docs: curl against a server, ours as far as their flags."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
from tests.rules.source import PACKAGE, ROOT

from headstart.app.cli.main import main
from headstart.config import Config

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# what a server with a plain text model and no extras answers instead of 200
ELSE = {
    "resp_7c1e": "404",  # made up
    "embed": "501",
    "rerank": "501",
    "slots/0": "501",
    "lora-adapters -d": "400",
    "props -d": "501",
    "/tools": "403",
    "/cors-proxy": "403",
    "/predict": "404",
    "-X DELETE 'http": "204",
    "/v1/stream?": "404",
}


def commands(path: Path) -> Iterator[str]:
    """Commands in the blocks of a document, whole ones where they have several lines."""
    lines, is_fenced = iter(path.read_text("utf-8").splitlines()), False
    for line in lines:
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            command = line.strip()
            if re.match(r"(curl|headstart|\.venv/bin/headstart) ", command):
                while command.endswith("\\") or _is_open(command):
                    command += "\n" + next(lines)
                yield command


def _is_open(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


ALL = [
    pytest.param(command, id=f"{path.name}-{number}")
    for path in DOCUMENTS
    for number, command in enumerate(commands(path), 1)
]
CURL = [one for one in ALL if str(one.values[0]).startswith("curl")]
OURS = [one for one in ALL if one not in CURL]


def test_commands_are_found() -> None:
    assert len(CURL) > 30
    assert len(OURS) > 15


@pytest.mark.parametrize("command", CURL)
def test_a_curl_command_is_answered(command: str, server_address: str) -> None:
    command = command.replace("127.0.0.1:8080", server_address)
    quiet = "curl -sS --max-time 20 -o /dev/null -w '%{http_code}'"
    if "/events" in command:  # which never ends
        quiet += " --max-time 2"
    done = subprocess.run(
        ["bash", "-c", command.replace("curl", quiet, 1)], capture_output=True, text=True
    )
    wanted = next((code for part, code in ELSE.items() if part in command), "200")
    assert done.stdout == wanted, done.stderr


@pytest.mark.parametrize("command", OURS)
def test_a_command_of_ours_is_accepted(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("HEADSTART_", "LLAMA_ARG_")):
            monkeypatch.delenv(name)
    _, *arguments = shlex.split(command, comments=True)
    place = arguments.index("--") if "--" in arguments else len(arguments)
    if "bigram" in command:
        pytest.skip("the reader writes this speculator first")
    assert main([*arguments[:place], "--print-config", *arguments[place:]]) == 0


READ_TOGETHER = {
    "draft_engine": "laid over the target's settings as a whole",
    "chat": "read through the methods of its class",
    "sampling": "become the defaults of request fields of the same name",
}


def test_every_setting_is_read_outside_config_and_command_line() -> None:
    readers = [
        path.read_text("utf-8")
        for path in PACKAGE.rglob("*.py")
        if path.parent.name not in ("cli", "config") or path.name == "logs.py"
    ]
    text = "\n".join(readers)
    unread = [
        f"{part}.{field.name}"
        for part, kind in get_type_hints(Config).items()
        for field in fields(kind)
        if part not in READ_TOGETHER
        # a field of requests may have the same name
        and not re.search(rf"(?<!body)(?<!request)(?<!defaults)\.{field.name}\b", text)
    ]
    assert unread == []
