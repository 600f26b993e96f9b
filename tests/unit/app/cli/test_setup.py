"""`scripts/setup`, which `make` calls, with a Python that only records what pip is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from headstart.app.assemble import check
from headstart.app.cli.serve import COMMAND
from headstart.config import Config
from headstart.types.errors import ConfigError

ROOT = Path(__file__).parents[4]
TOOLS = "bash env dirname cat cksum grep awk tee rm mkdir cp tail wc"
# a minute passes between two looks
CLOCK = """#!/usr/bin/env bash
printf . >>ticks
echo $((60 * $(wc -c <ticks)))
"""
# `-c` with importlib asks for the installed libllama, any other `-c` for the version of Python.
FAKE_PYTHON = """#!/usr/bin/env bash
case "$*" in
    --version) echo "Python 3.99" ;;
    *importlib.metadata*) [ -f installed ] ;;
    -c*) exit 0 ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip install -v"*)
        echo "$*" >>pip-calls
        echo "$CXXFLAGS" >flags
        echo "  [ 20/193] c++ -c x.cpp"
        echo "  [ 40/193] c++ -c y.cpp"
        [ ! -f broken ] && : >installed ;;
    *)
        echo "$*" >>pip-calls
        for i in 1 2 3 4 5 6 7 8 9 10; do echo "Collecting one-$i[extra]>=1 (from it)"; done ;;
esac
"""


class Clone:
    """A checkout with nothing but what setup reads, and a PATH of our own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        (folder / "scripts").mkdir()
        for name in ("pyproject.toml", "constraints.txt", "scripts/setup"):
            shutil.copy(ROOT / name, folder / name)
        for name in TOOLS.split():
            (self.bin / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name} here"))
        self.add_tool("python3", FAKE_PYTHON)
        self.add_tool("date", CLOCK)
        self.add_tool("c++", "#!/bin/sh\n")

    def add_tool(self, name: str, script: str) -> None:
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def setup(self, extra: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.bin), "HOME": os.environ.get("HOME", "/"), **variables}
        return subprocess.run(
            ["scripts/setup", *extra.split()],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )

    def pip_calls(self) -> list[str]:
        """What pip was asked for since the last time."""
        record = self.folder / "pip-calls"
        calls = record.read_text().splitlines() if record.exists() else []
        record.unlink(missing_ok=True)
        return calls


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_a_fresh_clone_compiles_libllama_with_progress_then_installs_the_rest_pinned(clone: Clone):
    result = clone.setup()
    assert result.returncode == 0, result.stderr
    assert "It compiles once" in result.stdout
    assert "compiling 40 of 193, 459 s left" in result.stdout
    assert "10 packages, now one-10\n" in result.stdout
    libllama, rest = clone.pip_calls()
    assert "llama_cpp_python==0.3.36" in libllama
    assert rest.endswith("-c constraints.txt -e .[compiled]")
    corrected = f'-include "{clone.folder}/scripts/amx_fix.h"'
    assert (clone.folder / "flags").read_text().strip() == corrected


def test_a_second_run_does_nothing(clone: Clone) -> None:
    clone.setup()
    clone.pip_calls()
    result = clone.setup()
    assert (result.returncode, result.stdout, clone.pip_calls()) == (0, "", [])


def test_changed_dependencies_are_installed_without_compiling_again(clone: Clone) -> None:
    clone.setup()
    clone.pip_calls()
    with (clone.folder / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert clone.setup().returncode == 0
    (call,) = clone.pip_calls()
    assert call.endswith("-e .[compiled]")


def test_tests_add_their_packages_once_and_compile_nothing_again(clone: Clone) -> None:
    clone.setup()
    clone.pip_calls()
    assert clone.setup("dev").returncode == 0
    (call,) = clone.pip_calls()
    assert call.endswith("-e .[dev]")
    for extra in ("", "dev"):
        clone.setup(extra)
    assert clone.pip_calls() == []


def test_serving_needs_nothing_more_after_the_setup_for_tests(clone: Clone) -> None:
    clone.setup("dev")
    clone.pip_calls()
    clone.setup()
    assert clone.pip_calls() == []


def test_only_a_change_of_cmake_args_compiles_again(clone: Clone) -> None:
    clone.setup()
    clone.pip_calls()
    assert clone.setup(CMAKE_ARGS="-DGGML_CUDA=on").returncode == 0
    libllama, _ = clone.pip_calls()
    assert "--no-cache-dir" in libllama  # a cached wheel knows nothing of CMAKE_ARGS
    clone.setup(CMAKE_ARGS="-DGGML_CUDA=on")
    clone.setup()
    assert clone.pip_calls() == []
    clone.setup(CMAKE_ARGS="")
    libllama, _ = clone.pip_calls()
    assert "llama_cpp_python==0.3.36" in libllama


def test_a_missing_python_is_named(clone: Clone) -> None:
    clone.add_tool("python3", "#!/bin/sh\nexit 1\n")
    result = clone.setup()
    assert result.returncode != 0
    assert "needs Python 3.11 or newer" in result.stderr


def test_a_missing_compiler_is_named_unless_prebuilt_wheels_are(clone: Clone) -> None:
    (clone.bin / "c++").unlink()
    result = clone.setup()
    assert result.returncode != 0
    assert "no C++ compiler was found" in result.stderr
    assert clone.pip_calls() == []
    assert clone.setup(LLAMA_WHEELS="https://wheels.invalid").returncode == 0
    assert "--extra-index-url https://wheels.invalid --only-binary" in clone.pip_calls()[0]


def test_a_failed_build_names_its_log_and_is_tried_again(clone: Clone) -> None:
    (clone.folder / "broken").touch()
    result = clone.setup()
    assert result.returncode != 0
    assert ".venv/libllama-build.log" in result.stderr
    without = "without LLAMA_WHEELS it is compiled"
    assert without not in result.stderr
    assert without in clone.setup(LLAMA_WHEELS="https://wheels.invalid").stderr
    (clone.folder / "broken").unlink()
    assert clone.setup().returncode == 0


def config(*argv: str) -> Config:
    return COMMAND.read(argv).config()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["--spec-suffix-corpus-tokens", "-1"],
            "--spec-suffix-corpus-tokens is -1 but must be at least 0",
        ),
        (["-m", "x.gguf", "--spec-type", "draft-model"], "add --draft-model FILE"),
        (["-m", "x.gguf", "-md", "d.gguf", "--spec-type", "suffix"], "does not name draft-model"),
        (["--spec-type", "draft-mtp", "--no-mtp"], "mtp but the model has no multi-token heads"),
        (
            ["--chat-template-file", "/nowhere/template"],
            "--chat-template-file /nowhere/template cannot be read",
        ),
        (["--spec-state", __file__], "cannot be written: it is not what headstart writes"),
        (["--spec-state", f"{__file__}/a/b"], "b cannot be written: Not a directory"),
    ],
)
def test_a_mistake_is_found_before_anything_is_loaded(argv: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(config(*argv))


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["-hf", "user/repo"],
        ["--spec-type", "draft-simple,suffix"],  # the embedded pair
        ["--spec-type", "suffix"],
        ["-m", "x.gguf", "-md", "d.gguf", "--spec-type", "draft-simple"],
        ["--spec", "off"],
        ["--chat-template", "chatml"],
        ["--chat-template", "without a message"],
    ],
    ids=str,
)
def test_what_may_work_passes_without_a_look_at_the_models(argv: list[str]) -> None:
    check(config(*argv))


def test_a_file_for_what_control_learns_is_not_made_before_its_models_are_known(tmp_path: Path):
    check(config("--spec-state", str(tmp_path / "new")))
    assert not list(tmp_path.iterdir())


def test_a_template_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "template").write_text("{{ messages[0].content }}")
    check(config("--chat-template-file", str(tmp_path / "template")))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["-td", "-2"], "--draft-threads is -2 but must be at least 1"),
        (["-tbd", "-2"], "--draft-threads-batch is -2 but must be at least 1"),
        (["-ngld", "-5"], "--draft-gpu-layers is -5 but must be at least -1"),
        (["-cd", "8"], "--draft-context is 8"),
        (["-ctvd", "q8_0", "-fa", "off"], "--draft-cache-type-v q8_0 needs flash attention"),
        (["-ctv", "q8_0", "-fa", "off"], "--cache-type-v q8_0 needs flash attention; drop"),
    ],
)
def test_a_wrong_value_for_either_model_names_its_own_flag(argv: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(*argv)
