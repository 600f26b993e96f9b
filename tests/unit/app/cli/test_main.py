"""The command line as a person meets it: output, messages, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest

from headstart.app.cli import main as cli_main
from headstart.app.cli.main import COMMANDS, find_command, main
from headstart.types.errors import ConfigError, EngineError, ModelError, RequestError


@pytest.fixture
def assemble(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the module that loads models."""
    module = ModuleType("headstart.app.assemble")
    monkeypatch.setitem(sys.modules, "headstart.app.assemble", module)
    monkeypatch.setattr("headstart.app.assemble", module, raising=False)
    return module


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)
    assert "or headstart model.gguf" in out.splitlines()[0]


def test_a_model_file_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    command = Mock(return_value=0)
    monkeypatch.setattr(cli_main, "find_command", {"serve": command}.__getitem__)
    assert main(["models/x.GGUF", "-c", "4096"]) == 0
    command.assert_called_once_with(["--model", "models/x.GGUF", "-c", "4096"])


@pytest.mark.parametrize("package", ["numpy", "orjson"])
def test_a_missing_dependency_is_one_line(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv = ['headstart', 'serve']\n"
    code += "from headstart.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    (line,) = done.stderr.splitlines()
    assert f"the package {package} is not installed" in line
    assert (done.returncode, done.stdout) == (1, "")


def test_the_end_of_a_child_is_known_also_where_the_launcher_ignored_it() -> None:
    code = "import signal, sys; from headstart.__main__ import main; sys.argv[1:] = ['--help']\n"
    code += "main(); sys.exit(signal.getsignal(signal.SIGCHLD) != signal.SIG_DFL)"
    script = """trap '' CHLD; exec "$0" -c "$1" """
    subprocess.run(["sh", "-c", script, sys.executable, code], check=True, timeout=60)


def test_a_terminal_without_a_character_shows_another() -> None:
    command = [sys.executable, "-m", "headstart", "serve", "--help-all"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_no_file_gets_the_number_of_a_closed_standard_stream(tmp_path: Path) -> None:
    """libllama prints to number 2, whatever is open there."""
    code = "import sys; from headstart.__main__ import main; sys.argv[1:] = ['--help']; main()\n"
    code += f"number = open({str(tmp_path / 'file')!r}, 'w'); number.write(str(number.fileno()))"
    script = """exec "$0" -c "$1" <&- >&- 2>&-"""
    subprocess.run(["sh", "-c", script, sys.executable, code], check=True, timeout=60)
    assert int((tmp_path / "file").read_text()) > 2


@pytest.mark.parametrize("before", ["--help", "help"])
def test_a_word_after_help_is_a_command(before: str, capsys) -> None:
    assert main([before, "bench"]) == 0
    assert "Usage: headstart bench" in capsys.readouterr().out
    assert main([before, "spec"]) == 1


def test_help_breaks_no_name_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backend", "--help"]) == 0
    assert "docs/from-llama-server.md" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_page(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"Usage: headstart {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_value_out_of_its_range_is_refused_by_every_command(command: str, capsys) -> None:
    for setting in cli_main.find_command(command).settings():
        if not setting.part and setting.option.least is not None:
            flag = f"{setting.flag}={setting.kind(setting.option.least - 1)}"
            assert main([command, flag]) == 1
            assert f"{setting.flag} is" in capsys.readouterr().err


def test_only_a_server_records_texts_and_runs_tools() -> None:
    """A config file may be shared by all commands; bench reads the preset of one model, and devices
    takes a server's flags but answers nothing.
    """
    for name in COMMANDS:
        settings = cli_main.find_command(name).settings()
        parts = {one.part for one in settings if one.name != "models_preset"}
        assert name in ("serve", "devices") or not parts & {"recording", "tools", "router"}


def test_version_names_ours_and_libllamas(assemble: ModuleType, capsys) -> None:
    vars(assemble).update(libllama_version=lambda: "9.9 (b1)")
    assert main(["--version"]) == 0
    out = capsys.readouterr().out
    assert "headstart " in out
    assert "9.9 (b1)" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serv"], "did you mean serve"),
        (["--prot", "1"], "did you mean --port"),
        (["serve", "-c", "-5"], "must be from 64 to 16777216, or 0"),
        (["serve", "x.gguf"], "did you mean -m x.gguf"),
        (["generate", "-p", "a", "-f", "b"], "not both"),
        (["generate", "-f", "/nowhere/prompt.txt"], "cannot read the prompt"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(argv: list[str], message: str, capsys) -> None:
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headstart: error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no"), 1),
        (ModelError("no"), 1),
        (RequestError("no"), 1),
        (EngineError("no"), 1),
        (PermissionError(13, "Permission denied", "/root/x.gguf"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_exit_codes(assemble: ModuleType, error, code, capsys) -> None:
    vars(assemble).update(serve=Mock(side_effect=error))
    assert main(["serve"]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_wait_that_fails_within_the_program_shows_where(assemble: ModuleType) -> None:
    """It is an OSError without a file or a text, so its line would be empty."""
    vars(assemble).update(serve=Mock(side_effect=TimeoutError))
    with pytest.raises(TimeoutError):
        main(["serve"])


@pytest.mark.parametrize("argv", [["serve", "--port", "81"], ["--port", "81"]])
def test_serve_which_may_be_left_out_is_handed_the_config_and_its_code_returned(assemble, argv):
    serve = Mock(return_value=7)
    vars(assemble).update(serve=serve)
    assert main(argv) == 7
    assert serve.call_args.args[0].server.port == 81


@pytest.mark.parametrize(
    ("command", "flag"),
    [("serve", "--version"), ("serve", "--list-devices"), ("verify", "--version")],
)
def test_what_ends_llama_server_at_once_ends_a_command(assemble: ModuleType, capsys, command, flag):
    vars(assemble).update(list_devices=lambda config: [], libllama_version=lambda: "9.9 (b1)")
    assert main([command, "-c", "512", flag]) == 0


def test_a_flag_of_any_command_is_no_value(capsys) -> None:
    for words in (["serve", "--alias"], ["--alias"]):
        assert main([*words, "--list-devices"]) == 1
        assert "--alias needs a value" in capsys.readouterr().err
    assert main(["serve", "--", "--list-devices"]) == 1


@pytest.mark.parametrize("flag", ["-p", "--prompt"])
def test_a_value_that_looks_like_version_does_not_end_a_command(flag: str, capsys) -> None:
    assert main(["generate", flag, "--version"]) == 1
    assert "needs a value" in capsys.readouterr().err
    arguments = find_command("generate").read([f"{flag}=--version"])
    assert arguments.values["prompt"] == "--version"


def test_print_config_does_not_serve(assemble: ModuleType, capsys) -> None:
    assert main(["serve", "--print-config", "--port", "81"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("port")]
    assert line.split() == ["port", "=", "81", "#", "flag"]


def test_devices_shows_one_row_per_device(assemble: ModuleType, capsys) -> None:
    class Device:
        name, kind, description, free_bytes, total_bytes = (
            "CUDA0",
            "GPU",
            "a card",
            2**30,
            3 * 2**30,
        )

    vars(assemble).update(list_devices=lambda config: [Device()])
    assert main(["devices"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "CUDA0" in line]
    assert row.split() == ["CUDA0", "GPU", "a", "card", "1.0", "GiB", "3.0", "GiB"]


def test_devices_shows_what_a_model_would_take(assemble: ModuleType, capsys) -> None:
    use = SimpleNamespace(weights=7 * 2**20, cache=2**21, compute=2**20, total=10 * 2**20)
    fitted = SimpleNamespace(
        uses={"CUDA0": use},
        config=SimpleNamespace(context=512),
        remarks=("layers moved",),
    )
    vars(assemble).update(list_devices=lambda config: [], fit_memory=lambda config, free: fitted)
    assert main(["devices", "-m", "some.gguf", "-c", "512"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if "CUDA0" in line]
    assert row.split() == ["CUDA0", "7", "MiB", "2", "MiB", "1", "MiB", "10", "MiB"]
    assert "512 tokens of context" in lines
    assert "layers moved" in lines
