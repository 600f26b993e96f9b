"""Who brings a flag of llama-server is told what to do instead, not sent to another flag."""

from __future__ import annotations

import pytest

from headstart.cli.flags import read_flags
from headstart.cli.llama_server import ALWAYS_SO, IN_REQUEST, INSTEAD, NOT_SUPPORTED
from headstart.cli.settings import all_settings
from headstart.errors import ConfigError
from headstart.server.schemas import ChatBody

SETTINGS = all_settings()


def complaint(*argv: str) -> str:
    with pytest.raises(ConfigError) as error:
        read_flags("serve", "About.", SETTINGS, argv)
    return str(error.value)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["--temp", "0.5"],
            "there is no flag --temp: set it in the request, as temperature (all flags",
        ),
        (["-n", "5"], "there is no flag -n: set it in the request, as n_predict"),
        (["-n=5"], "there is no flag -n: set it in the request"),
        (["--predict", "-1"], "there is no flag --predict: set it in the request, as n_predict"),
        (["--jinja"], "it is always so here, leave it out"),
        (["-cb"], "it is always so here, leave it out"),
        (["-kvu", "-c", "4096"], "it is always so here, leave it out"),
        (["--control-vector", "a.gguf"], "it is not supported"),
        (["--ssl-key-file", "k"], "it is not supported"),
        (["-mm", "f"], "it is not supported"),
        (["--list-devices"], "run headstart devices"),
        (["--mtp"], "multi-token heads are not supported yet"),
    ],
)
def test_a_flag_of_llama_server_has_its_sentence(argv: list[str], says: str) -> None:
    message = complaint(*argv)
    assert says in message
    assert "did you mean" not in message


def test_no_sentence_is_about_a_flag_that_exists() -> None:
    named = [*IN_REQUEST, *ALWAYS_SO, *NOT_SUPPORTED, *INSTEAD]
    ours = {name for setting in SETTINGS for name in (setting.flag, *setting.aliases)}
    assert ours.isdisjoint(named)
    assert len(named) == len(set(named))


def test_what_is_to_be_set_in_the_request_is_a_field_of_it() -> None:
    assert set(IN_REQUEST.values()) <= set(ChatBody.model_fields)


@pytest.mark.parametrize("argv", [["--frobnicate"], ["--tmp", "1"], ["-q", "1"]])
def test_a_far_guess_is_not_made(argv: list[str]) -> None:
    assert "did you mean" not in complaint(*argv)
