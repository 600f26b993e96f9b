"""`headstart bench` with real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.server.server_process import until
from tests.server.serving import serving_models

from headstart.app.cli import serve
from headstart.config import Config, EngineConfig, SpeculationConfig
from headstart.extras.bench import arms
from headstart.extras.bench.client import Answer, Client, running
from headstart.extras.bench.command import COMMAND
from headstart.extras.bench.library import read_questions
from headstart.types.errors import ConfigError, HeadstartError


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A prompt, and two bodies of requests."""
    file = tmp_path / "prompts.txt"
    bodies = [
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
        {"prompt": "def add(a, b):", "max_tokens": 4},
    ]
    file.write_text("\n".join(["Who are you?", *map(json.dumps, bodies)]))
    return file


def test_it_starts_a_server_and_answers_the_same_prompts_in_every_way(prompts: Path, capsys):
    flags = ["--prompts", str(prompts), "--tokens", "8", "--seconds", "0", "--users", "1"]
    flags += ["--settings", "@4;suffix@2;auto:suffix"]
    assert COMMAND([*flags, "--temperatures", "0", "--context", "1024", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (cell,) = found["lines"]
    assert (cell["workload"], cell["users"]) == ("prompts", 1)
    assert list(cell["arms"]) == ["off", "fixed 4", "suffix@2", "auto:suffix", "auto"]
    assert sum(cell["arms"]["auto"]["shares"].values()) == pytest.approx(1.0)
    assert found["control"]["cost_ms"]["rows"]
    for arm in cell["arms"].values():
        assert len(arm["rates"]) == 3
        assert min(arm["rates"]) > 0.0
    assert cell["arms"]["off"]["draft_n"] == 0


def test_any_server_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    config = Config(
        engine=EngineConfig(context=4096, threads=1),
        speculation=SpeculationConfig(spec_state="none"),
    )
    with serving_models(config) as client:
        flags = ["--url", str(client.base_url), "--workloads", "agent", "--tokens", "16"]
        assert COMMAND([*flags, "--users", "2", "--temperatures", "0.8", "--seconds", "0"]) == 0
    heads, _, line, *_ = capsys.readouterr().out.strip().splitlines()
    assert "server, tokens/s" in heads
    assert line.startswith("| agent | 0.8 | 2 |")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workloads", "knit"], "there are edit, json"),
        (["--users", "0"], "numbers from 1 on"),
        (["--users", "1.5"], "whole numbers"),
        (["--temperatures", "nan"], "numbers from 0 on"),
        (["--temperatures", "warm"], "numbers from 0 on"),
        (["--error", "0"], "above 0"),
        (["steps", "--json"], "takes no --json"),
        (["--settings", "suffix"], "SPECULATORS@LENGTH"),
        (["--settings", "@0"], "names '@0'"),
        (["--prompts", "/nowhere.txt"], "cannot read /nowhere.txt"),
        (["stairs"], "the only one is steps"),
    ],
)
def test_what_cannot_be_measured_is_said_before_a_server_starts(flags, message) -> None:
    with pytest.raises(ConfigError, match=message):
        COMMAND(flags)


def test_a_server_that_cannot_start_is_an_error_with_its_reason() -> None:
    with pytest.raises(HeadstartError, match="context"):
        COMMAND(["--quick", "--context", "1"])


Started = list[tuple[list[str], Mapping[str, str]]]
"""Flags and environment."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Servers of bench, none of which is started."""
    found: Started = []

    def running(
        command: list[str], log: Path, key: str, environment: Mapping[str, str]
    ) -> NoReturn:
        found.append((command[command.index("serve") + 1 :], environment))
        raise HeadstartError("it is not started")

    monkeypatch.setattr(arms, "running", running)
    return found


@pytest.mark.parametrize("flags", [[], ["--cache-disk=100"]])
def test_its_server_keeps_prompts_on_the_disk_only_if_that_was_asked_for(flags, started) -> None:
    with suppress(HeadstartError):
        COMMAND(flags)
    ((given, _),) = started
    assert [one for one in given if one.startswith("--cache-disk")] == flags


def test_its_server_computes_as_the_users_but_is_not_reached_and_records_nothing_like_it(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.toml"
    file.write_text(
        'context = 2048\napi-prefix = "/llm"\nrecord-texts = "/texts"\ntemp = 0.5\n'
        'media-path = "/images"\nimage-urls = true\nmax-body-mb = 64\n'
    )
    monkeypatch.setenv("HEADSTART_HOST", "/run/users.sock")
    monkeypatch.setenv("LLAMA_ARG_TOP_K", "7")
    with suppress(HeadstartError):
        COMMAND(["--config", str(file)])
    ((given, environment),) = started
    for name in ("HEADSTART_HOST", "LLAMA_ARG_TOP_K"):
        monkeypatch.delenv(name)
        assert name not in environment
    config = serve.COMMAND.read(given).config()
    assert (config.server.api_prefix, config.recording.record_texts) == ("", None)
    assert (config.engine.context, config.sampling.numbers) == (
        2048,
        {"temperature": 0.5, "top_k": 7},
    )
    server = config.server  # a body of --prompts may name or have images
    assert (server.media_path, server.image_urls, server.max_body_mb) == ("/images", True, 64)
    assert config.scheduler.kv_unified, "each question may use the whole context"


@pytest.mark.parametrize("flags", [[], ["--hf-token", "secret"]])
def test_no_command_line_has_the_token_of_the_hub(flags, started, monkeypatch) -> None:
    if not flags:
        monkeypatch.setenv("HEADSTART_HF_TOKEN", "secret")
    with suppress(HeadstartError):
        COMMAND(flags)
    ((given, environment),) = started
    assert "secret" not in " ".join(given)
    assert environment["HEADSTART_HF_TOKEN"] == "secret"


def test_its_server_has_the_preset_of_its_model(started: Started, tmp_path, monkeypatch) -> None:
    file = tmp_path / "models.ini"
    file.write_text("[some]\nc = 1024\nnp = 2\nport = 9\nrecord-mb = 2\n")
    monkeypatch.setenv("HEADSTART_MODELS_PRESET", str(file))
    with suppress(HeadstartError):
        COMMAND(["-m", "x.gguf", "-np", "3"])
    ((given, _),) = started
    assert {"--context=1024", "--parallel=3", "--model=x.gguf"} <= set(given)
    assert "--models-preset" not in " ".join(given)
    with pytest.raises(ConfigError, match="name the one to measure"):
        COMMAND([])


SERVER = """
import sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
HTTPServer(("127.0.0.1", int(sys.argv[-1])), SimpleHTTPRequestHandler).serve_forever()
"""
OWNER = """
import sys, time
from pathlib import Path
from headstart.extras.bench.client import running
with running([sys.executable, "server.py"], Path("log")) as client:
    print(client.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child")
def test_a_server_ends_with_what_started_it_even_if_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "health").write_text("{}")
    (tmp_path / "server.py").write_text(SERVER)
    environment = os.environ | {"PYTHONPATH": str(Path("src").absolute())}
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        server = Path("/proc", owner.stdout.readline().decode().strip(), "stat")
        assert server.exists()
        owner.kill()
    until(lambda: not server.exists() or ") Z" in server.read_text(), "its end")


def test_another_program_may_say_in_any_words_that_it_is_ready(tmp_path: Path) -> None:
    (tmp_path / "health").write_text("OK")
    (tmp_path / "server.py").write_text(f"import os\nos.chdir({str(tmp_path)!r}){SERVER}")
    command = [sys.executable, str(tmp_path / "server.py")]
    with running(command, tmp_path / "log") as client:
        assert client.is_ready()


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_an_answer_has_no_more_tokens_than_its_body_and_the_flag_allow(name, tmp_path, monkeypatch):
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        f'{{"messages": [], "{name}": 300}}\n{{"messages": [], "{name}": 4}}\n'
        f'{{"messages": [], "{name}": "no number"}}'
    )
    asked = list[dict[str, Any]]()

    def stream(client: Client, path: str, body: dict[str, Any], tenant: str) -> Answer:
        asked.append(body)
        return Answer("", 0.0, [1.0], 1)

    monkeypatch.setattr(Client, "stream", stream)
    Client("http://127.0.0.1:1").ask_all(read_questions(file), users=1, max_tokens=16)
    assert [body.pop("max_tokens") for body in asked] == [16, 4, 16]
    assert not any(name in body for body in asked)
