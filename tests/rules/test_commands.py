"""The commands of README and docs are run, or where they need what is not here, read."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
from tests.rules.source import PACKAGE, ROOT

from headstart.app import demo
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
    "transcriptions": "500",  # the demo model does not hear
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


# those of sentences and tables, without ones that have placeholders
INLINE = sorted(
    {
        " ".join(command.split())
        for path in DOCUMENTS
        for command in re.findall(r"`(headstart [a-z][^`]*)`", path.read_text("utf-8"))
        if not re.search(r"\.\.\.|\b[A-Z]{3,}\b|backend install|--version", command)
    }
)


def test_commands_are_found() -> None:
    assert len(CURL) > 30
    assert len(OURS) > 15
    assert len(INLINE) > 15


@pytest.mark.parametrize("command", CURL)
def test_a_curl_command_is_answered(command: str, server_address: str, tmp_path: Path) -> None:
    (tmp_path / "speech.mp3").touch()
    command = command.replace("127.0.0.1:8080", server_address)
    quiet = "curl -sS --max-time 90 -o /dev/null -w '%{http_code}'"
    if "/events" in command:  # which never ends
        quiet += " --max-time 0.5"
    done = subprocess.run(
        ["bash", "-c", command.replace("curl", quiet, 1)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    wanted = next((code for part, code in ELSE.items() if part in command), "200")
    assert done.stdout.strip() == wanted, done.stderr


# what is downloaded, written by the reader, or on other machines
NOT_HERE = re.compile(r"-hf|install|bge|bigram|rpc|cluster|distill (?!purge)|--models-max")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the files that commands name."""
    for name in list(os.environ):
        if name.startswith(("HEADSTART_", "LLAMA_ARG_")) and name != "HEADSTART_LIBLLAMA":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    (tmp_path / "models").mkdir()
    (tmp_path / "texts").mkdir()
    for name in ("model", "target", "models/one"):
        (tmp_path / f"{name}.gguf").symlink_to(demo.path(demo.TARGET))
    (tmp_path / "draft.gguf").symlink_to(demo.path(demo.DRAFT_OTHER))
    (tmp_path / "models.ini").write_text(f"version = 1\n[one]\nmodel = {demo.path(demo.TARGET)}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [p for p in OURS if NOT_HERE.search(str(p.values[0]))])
def test_a_command_that_is_not_run_is_accepted(command: str, place: Path) -> None:
    assert is_accepted(command)


@pytest.mark.parametrize("command", INLINE)
def test_a_command_in_a_sentence_is_accepted(command: str, place: Path) -> None:
    assert is_accepted(command)


def is_accepted(command: str) -> bool:
    _, *arguments = shlex.split(command, comments=True)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "bigram" in command:
        pytest.skip("the reader writes this speculator first")
    return main([*arguments[:end], "--print-config", *arguments[end:]]) == 0


def announced_address(lines: Iterable[str]) -> str | None:
    """What the server prints when it is ready; None if it ends without."""
    matches = (re.search(r"http://((?:127\.0\.0\.1|0\.0\.0\.0):\d+)", line) for line in lines)
    return next((match[1] for match in matches if match), None)


# without ports, which others may have; so two servers are the same command
RUN = {
    re.sub(r" --port \d+", "", str(p.values[0])): p.id
    for p in OURS
    if not NOT_HERE.search(str(p.values[0]))
}


@pytest.mark.parametrize("command", RUN, ids=RUN.values())
def test_a_command_of_ours_runs(command: str, place: Path) -> None:
    _, *words = shlex.split(command.replace("~/", f"{place}/"), comments=True)
    is_server = words[0] in ("serve", "router") or words[0] not in ("generate", "distill")
    words += ["--port", "0"] * is_server
    with subprocess.Popen(
        [sys.executable, "-m", "headstart", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        if is_server and announced_address(process.stdout):
            process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in DOCUMENTS])
def test_what_other_commands_name_exists(path: Path) -> None:
    """Targets of make, extras of the package, our modules and scripts."""
    text = path.read_text("utf-8")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    # in code: a sentence may say that "make" does something
    assert set(re.findall(r"(?:`|^ *)make ([a-z-]+)", text, re.MULTILINE)) <= targets
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = extras["optional-dependencies"]
    assert set(re.findall(r"(?:'\.|headstart)\[(\w+)\]", text)) <= extras.keys()
    modules = re.findall(r"python -m ((?:benchmarks|scripts)[\w.]+)", text)
    scripts = re.findall(r"\bscripts/[\w./]+\w", text)
    files = [*(f"{module.replace('.', '/')}.py" for module in modules), *scripts]
    assert [name for name in files if not (ROOT / name).exists()] == []


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
    # a field of requests may have the same name
    read = set(re.findall(r"(?<!body)(?<!request)(?<!defaults)\.(\w+)\b", "\n".join(readers)))
    unread = [
        f"{part}.{field.name}"
        for part, kind in get_type_hints(Config).items()
        for field in fields(kind)
        if part not in READ_TOGETHER and field.name not in read
    ]
    assert unread == []
