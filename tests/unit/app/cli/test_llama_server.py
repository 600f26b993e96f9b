"""llama-server's command line works here, or says why it does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headstart.app.cli import llama_server
from headstart.app.cli.arguments import RESERVED, check_environment
from headstart.app.cli.command import PageRequested
from headstart.app.cli.main import COMMANDS, find_command
from headstart.app.cli.resolve import Resolved
from headstart.app.cli.serve import COMMAND
from headstart.app.cli.settings import Setting, all_settings
from headstart.types.errors import ConfigError

SETTINGS = all_settings()
# what `llama-server --help` lists, spelling by spelling
THEIRS = json.loads((Path(__file__).parent / "llama_server_flags.json").read_text("utf-8"))
# what newer ones have too, up to b11549
NEWER = {
    "--moe-cache-mib": "LLAMA_ARG_MOE_CACHE_MIB",
    "--spec-draft-sampling": "LLAMA_ARG_SPEC_DRAFT_SAMPLING",
    "": "LLAMA_ARG_SLOT_SAVE_PATH",
}
NUMBER, LIST = "1", "none"
# values of flags that take neither a number nor a list
VALUES = {
    "--flash-attn": "auto", "--split-mode": "none", "--device": "none", "--load-mode": "mmap",
    "--cache-type-k": "f16", "--cache-type-v": "f16", "--spec-draft-type-k": "f16",
    "--spec-draft-type-v": "f16", "--tensor-split": "1,1", "--log-colors": "on", "--cpu-mask": "1",
    "--cpu-range": "0-0", "--fit": "off", "--cache-reuse": "0", "--reasoning-format": "none",
    "--reasoning": "auto", "--reasoning-budget": "-1", "--mirostat": "0", "--cache-ram": "0",
    "--adaptive-target": "-1", "--logit-bias": "3+1", "--api-prefix": "/llm",
    "--cpu-strict": "0", "--fit-ctx": "64", "--sleep-idle-seconds": "-1",
    "--ctx-size": "0", "--batch-size": "32",
    "--ubatch-size": "32", "--chat-template-kwargs": "{}", "--ui-config": "{}",
}  # fmt: skip


def read(*argv: str) -> Resolved:
    return COMMAND.read(argv)


def setting_of(name: str) -> Setting | None:
    return next((one for one in SETTINGS if name in one.spellings), None)


def value_of(entry: dict[str, Any]) -> str:
    if "--spec-type" in entry["names"]:
        return LIST
    if "--models-preset" in entry["names"]:
        return str(Path(__file__).parent / "empty.ini")
    setting = setting_of(entry["names"][0])
    if setting is not None and setting.option.choices:
        return setting.option.choices[0]
    return next((VALUES[name] for name in entry["names"] if name in VALUES), NUMBER)


def argv_of(entry: dict[str, Any], name: str) -> list[str]:
    count = 0 if not entry["value"] else 2 if entry["value"] == "START END" else 1
    return [name] + [value_of(entry)] * count


def test_the_table_has_each_spelling_and_variable_once() -> None:
    assert len(THEIRS) == 255
    listed = [name for entry in THEIRS for name in entry["names"]]
    assert len(listed) == 412
    table = [name for flag in llama_server.flags() for name in (*flag.names, *flag.negatives)]
    assert sorted(table) == sorted([*listed, *filter(None, NEWER)])
    variables = [flag.environment for flag in llama_server.flags() if flag.environment]
    theirs = [entry["env"] for entry in THEIRS if entry["env"]]
    assert sorted(variables) == sorted([*theirs, *NEWER.values()])


def test_flags_of_newer_releases_are_taken_or_refused_with_a_reason(monkeypatch) -> None:
    read("--spec-draft-sampling", "probabilistic", "--moe-cache-mib", "0")
    with pytest.raises(ConfigError, match="no copies of experts"):
        read("--moe-cache-mib", "512")
    monkeypatch.setenv("LLAMA_ARG_SLOT_SAVE_PATH", "/tmp")
    assert read().values["slot_save_path"] == "/tmp"


@pytest.mark.parametrize("entry", THEIRS, ids=lambda entry: entry["names"][-1])
def test_every_spelling_is_taken_or_refused_with_a_reason(entry: dict[str, Any]) -> None:
    for name in entry["names"]:
        flag, setting, argv = llama_server.by_name()[name], setting_of(name), argv_of(entry, name)
        switch = llama_server.OFF if name in flag.negatives else llama_server.ON
        if name in ("-h", "--help", "--usage", "--version", "--list-devices"):
            with pytest.raises(PageRequested):
                read(*argv)
        elif setting is not None:
            assert read(*argv).origins[setting.name] == "flag"
        elif (verdict := flag.judge(argv[1] if argv[1:] else switch)).kind == "refused":
            with pytest.raises(ConfigError, match=re.escape(verdict.text)):
                read(*argv)
        else:
            assert set(verdict.settings if verdict.kind == "sets" else ()) <= {
                name for name, origin in read(*argv).origins.items() if origin == "flag"
            }


@pytest.mark.parametrize("name", [entry["env"] for entry in THEIRS if entry["env"]])
def test_every_variable_sets_what_its_flag_sets(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (entry,) = (one for one in THEIRS if one["env"] == name)
    value = value_of(entry)
    monkeypatch.setenv(name, value)
    setting = setting_of(entry["names"][0])
    flag = llama_server.by_name()[entry["names"][0]]
    if setting is not None:
        assert read().origins[setting.name] == f"environment {name}"
    elif (
        name.startswith("LLAMA_")
        and flag.judge(value if entry["value"] else "on").kind == "refused"
    ):
        with pytest.raises(ConfigError, match=f"{name}="):
            read()
    else:
        read()


def test_a_variable_serves_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_MODEL", "x.gguf")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "4096")
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    config = read("-c", "512").config()
    assert config.model.model == "x.gguf"
    assert config.engine.context == 512
    assert config.server.api_key == "secret"


def test_ours_beats_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_PORT", "1")
    monkeypatch.setenv("HEADSTART_PORT", "2")
    assert read().values["port"] == 2


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--temp", "0.5"], "temperature", 0.5),
        (["--dynatemp-exp", "2"], "dynatemp_exponent", 2.0),
        (["--gpt-oss-20b-default"], "min_p", 0.01),
    ],
)
def test_a_flag_of_a_sampling_parameter_gives_its_default(argv, name, value) -> None:
    assert read().config().sampling.numbers == {}
    assert read(*argv).config().sampling.numbers[name] == value


@pytest.mark.parametrize("argv", [["--frobnicate"], ["-q", "1"]])
def test_a_far_guess_is_not_made(argv: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        read(*argv)
    assert "did you mean" not in str(error.value)


def test_a_flag_of_serve_is_named_as_such_elsewhere() -> None:
    with pytest.raises(ConfigError, match="--port is a flag of headstart serve"):
        find_command("generate").read(["--port", "1"])


def test_a_preset_of_one_model_gives_the_flags_of_a_model_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "models.ini"
    file.write_text(
        "version = 1\n[*]\nc = 1024\nno-mmap = true\n\n[org/some:Q4]\nLLAMA_ARG_PORT = 99\n"
        "temp = 0.5\nload-on-startup = true\n"
    )
    resolved = read("--models-preset", str(file), "-m", "x.gguf", "--temp", "0.1")
    config = resolved.config()
    assert (config.engine.context, config.engine.mmap, config.server.port) == (1024, False, 99)
    assert (config.model.model, config.model.alias) == ("x.gguf", "org/some:Q4")
    assert config.sampling.numbers == {"temperature": 0.1}
    assert resolved.origins["port"] == "preset"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[a]\nc = 1\n[b]\nc = 2\n", "has 2 models"),
        ("[a]\nctx-sizes = 1\n", "which is no flag; did you mean ctx-size"),
        ("[a]\nmirostat = 1\n", "mirostat = 1 in"),
        ("[a\n", "is not valid"),
    ],
)
def test_a_preset_that_cannot_be_used_is_refused(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "models.ini"
    file.write_text(content)
    with pytest.raises(ConfigError, match=says):
        read("--models-preset", str(file), "-m", "x.gguf")


SERVE = all_settings()


def check(environment: dict[str, str], *, settings: list[Setting] = SERVE) -> str | None:
    return check_environment(environment, settings)


def test_a_command_that_does_not_serve_needs_no_key() -> None:
    assert check({"LLAMA_API_KEY": "secret"}, settings=all_settings(["model"])) is None


def test_a_name_that_llama_server_does_not_have_is_told(monkeypatch, capsys) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZES", "4096")
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    monkeypatch.setenv("LLAMA_ARG_PORT", "")
    monkeypatch.setenv("LLAMA_CACHE", "/models")  # read by the hub
    COMMAND.read([])
    err = capsys.readouterr().err
    assert err == (
        "headstart: warning: not read: LLAMA_ARG_CTX_SIZES; llama-server has no such variable; "
        "did you mean LLAMA_ARG_CTX_SIZE?\n"
    )


def test_a_name_of_llama_servers_that_is_near_to_none_gets_no_guess() -> None:
    assert check({"LLAMA_ARG_FOO": "1"}) == (
        "not read: LLAMA_ARG_FOO; llama-server has no such variable"
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("HEADSTART_API_KEYS", "did you mean HEADSTART_API_KEY?"),
        ("HEADSTART_APIKEY", "did you mean HEADSTART_API_KEY?"),
        ("HEADSTART_PARALEL", "did you mean HEADSTART_PARALLEL?"),
        ("HEADSTART_CTX_SIZE", "did you mean HEADSTART_CONTEXT?"),
        ("HEADSTART_NP", "did you mean HEADSTART_PARALLEL?"),
        ("HEADSTART_AGENT", "did you mean LLAMA_ARG_AGENT?"),
        ("HEADSTART_VERBOSE", "did you mean --verbose?"),
        ("HEADSTART_BANANA", "such setting (all names"),
    ],
)
def test_an_unknown_name_of_ours_is_refused_with_the_closest(name: str, says: str) -> None:
    """Also beside others: a misspelt key would open the server."""
    with pytest.raises(ConfigError, match=f"{name} is set but there is no .*{re.escape(says)}"):
        check({name: "1", "LLAMA_ARG_FOO": "1", "HEADSTART_SERVICE_HOST": "10.0.0.1"})
    assert check({name: ""}) is None


@pytest.mark.parametrize(
    "settings", [SERVE, all_settings(["engine"]), []], ids=["serve", "engine", "none"]
)
def test_names_of_other_commands_and_of_tools_are_fine(settings: list[Setting]) -> None:
    names = ("CACHE", "CONFIG", "URL", "VOCABS", "PROMPT", "TOP_K", "HOST", "SPEC_SUFFIX_FILE")
    assert check({f"HEADSTART_{name}": "1" for name in names}, settings=settings) is None


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_of_ours_that_is_no_setting_sets_nothing(command: str) -> None:
    variables = {name for one in find_command(command).settings() for name in one.variables}
    assert not variables & RESERVED


@pytest.mark.parametrize("service", ["HEADSTART", "HEADSTART_HEAD_SVC"])
def test_what_kubernetes_sets_for_a_service_of_our_name_is_passed_over(monkeypatch, service):
    names = (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_HTTP",
        "PORT_8080_TCP",
        "PORT_8080_TCP_ADDR",
        "PORT",
    )
    for name in names:
        monkeypatch.setenv(f"{service}_{name}", "tcp://10.0.0.1:8080")
    monkeypatch.delenv("LLAMA_ARG_PORT", raising=False)
    assert read().values["port"] == read("--port", "8080").values["port"]
    with pytest.raises(ConfigError, match="HEADSTART_HEAD_PORT is set but there is no"):
        check({"HEADSTART_HEAD_PORT": "8080"})
