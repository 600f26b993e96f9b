"""examples/speculator, as a package that was installed: found, configured and tested."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.rules.source import ROOT

EXAMPLE = ROOT / "examples/speculator"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """What pip leaves behind, without pip."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    for file in EXAMPLE.glob("*.py"):
        shutil.copy(file, tmp_path)
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    ((group, entries),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {module}" for name, module in entries.items())]
    info.joinpath("entry_points.txt").write_text("\n".join(lines))
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder}"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=folder
    )


def test_its_options_are_flags_once_it_is_installed(installed: Path) -> None:
    flags = ["--spec-type", "frequent", "--spec-frequent-size", "3", "--print-config"]
    shown = run(installed, "-m", "headstart", "serve", *flags)
    assert 'spec_type = "frequent"' in shown.stdout, shown.stderr
    assert "spec_frequent_size = 3" in shown.stdout
    flags[3] = "0"
    assert (
        "needs size and n-max of at least 1"
        in run(installed, "-m", "headstart", "generate", "-p", "x", *flags[:4]).stderr
    )


def test_its_own_test_passes(installed: Path) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-c", os.devnull)
    result = run(installed, "-m", "pytest", *options, str(installed))
    assert "2 passed" in result.stdout, result.stdout + result.stderr
