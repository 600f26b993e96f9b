"""What is set in the environment is read, refused or told; it is never ignored in silence."""

from __future__ import annotations

import pytest

from headstart.app.cli.command import read_flags
from headstart.app.cli.environment import check_environment
from headstart.app.cli.settings import Setting, all_settings
from headstart.types.errors import ConfigError

SERVE = all_settings()


def check(environment: dict[str, str], *, settings: list[Setting] = SERVE) -> str | None:
    return check_environment(environment, settings)


def test_a_command_that_does_not_serve_needs_no_key() -> None:
    assert check({"LLAMA_API_KEY": "secret"}, settings=all_settings(["model"])) is None


def test_a_name_that_llama_server_does_not_have_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZES", "4096")
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    monkeypatch.setenv("LLAMA_ARG_PORT", "")
    monkeypatch.setenv("LLAMA_CACHE", "/models")  # read by the hub
    read_flags("serve", "About.", SERVE, [])
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
        ("HEADSTART_PARALEL", "did you mean HEADSTART_PARALLEL"),
        ("HEADSTART_CTX_SIZE", "did you mean HEADSTART_CONTEXT"),
        ("HEADSTART_NP", "did you mean HEADSTART_PARALLEL"),
        ("HEADSTART_BANANA", r"no such setting \(all names"),
    ],
)
def test_an_unknown_name_of_ours_is_refused_with_the_closest(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is set but there is no such setting.*"):
        check({name: "1"})
    with pytest.raises(ConfigError, match=says):
        check({name: "1"})
    assert check({name: ""}) is None


@pytest.mark.parametrize(
    "settings", [SERVE, all_settings(["engine"]), []], ids=["serve", "engine", "none"]
)
def test_names_of_other_commands_and_of_tools_are_fine(settings: list[Setting]) -> None:
    names = ("CACHE", "CONFIG", "URL", "VOCABS", "PROMPT", "TOP_K", "HOST", "SPEC_SUFFIX_FILE")
    assert check({f"HEADSTART_{name}": "1" for name in names}, settings=settings) is None


def test_what_kubernetes_sets_for_a_service_of_our_name_is_passed_over() -> None:
    names = (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_HTTP",
        "PORT_8080_TCP",
        "PORT_8080_TCP_ADDR",
    )
    assert check({f"HEADSTART_{name}": "1" for name in names}) is None
