"""What a server writes: prompts unless it is told not to, slot files and recorded texts."""

from __future__ import annotations

import base64
import os
import shutil
import stat
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.images import wav
from tests.server.fake_worker import INFO, FakeWorker, hello
from tests.server.server_process import Server, until
from tests.server.serving import serving, serving_models

from headstart.app import stored_prompts
from headstart.app.demo import TARGET, path
from headstart.app.stored_prompts import with_prompts
from headstart.config import (
    Config,
    EngineConfig,
    RecordingConfig,
    SchedulerConfig,
    ServerConfig,
    SpeculationConfig,
)
from headstart.extras.distill.texts import read_texts
from headstart.structures.model_id import ModelId
from headstart.structures.tenants import namespace_of_key
from headstart.types.errors import RequestError
from headstart.types.media import MediaChunk, MediaQuestion
from headstart.types.request import Event, ReplyEvent, SlotAction

PROMPT = (
    "def add(first, second):\n    return first + second\n\n\ndef multiply(first, second):\n" * 20
)
BODY = {"prompt": PROMPT, "n_predict": 8, "temperature": 0}
FLAGS = ("--context", "4096", "--threads", "1", "-np", "1", "--spec", "off")
CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "ab"}]}
Usage = namedtuple("Usage", "free")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path))
    return tmp_path


def ask(folder: Path, *flags: str) -> tuple[str, int, dict[str, Any], str]:
    """Of a new server: an answer, how many tokens of its prompt were read, what /props says of
    prompts on the disk, and the log.
    """
    with Server([*FLAGS, *flags], folder) as server:
        with server.client() as client:
            answer = client.post("/completion", json=BODY).json()
            told = client.get("/props").json()["prompts_on_disk"]
        assert server.stop() == 0
    return answer["content"], answer["timings"]["prompt_n"], told, "".join(server.lines)


def test_a_server_as_it_comes_does_not_read_a_prompt_again_and_names_what_it_keeps(tmp_path):
    text, num_read, told, log = ask(tmp_path)
    assert num_read > 300
    folder = tmp_path / "prompts"
    assert f"kept in {folder}, {int(told['max_bytes']) >> 20} MiB at most" in log
    assert "--cache-disk 0" in log
    assert told["folder"] == str(folder)
    assert 0 < told["max_bytes"] <= min(10 << 30, shutil.disk_usage(tmp_path).free)
    files = list(folder.glob("*/*"))
    assert files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {stat.S_IMODE(one.stat().st_mode) for one in (folder, *folder.iterdir())} == {0o700}
    assert ask(tmp_path)[1] == 1
    assert ask(tmp_path, "--cache-disk", "0")[:2] == (text, num_read)


def test_nothing_is_written_that_a_client_does_not_want(tmp_path: Path) -> None:
    with Server([*FLAGS, "--no-cache-prompt"], tmp_path) as server, server.client() as client:
        for wish in ({}, {"cache_prompt": False}, {"cache_prompt": True, "store": False}):
            client.post("/completion", json=BODY | wish).raise_for_status()
        assert server.stop() == 0
    told = "prompts and answers of requests with cache_prompt are kept in"
    assert told in "".join(server.lines)
    assert not list(tmp_path.glob("prompts/*/*"))


def heard(request: Any) -> Any:
    """What the fake worker does, which takes any sound."""
    if isinstance(request, MediaQuestion):
        return [ReplyEvent(request.request_id, ((MediaChunk(b"sound", 4),),))]
    return hello(request)


@pytest.mark.parametrize("field", ["store", "cache_prompt"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "ab"}),
        ("/v1/completions", {"prompt": "ab"}),
        ("/v1/chat/completions", CHAT_BODY),
        ("/v1/responses", {"input": "ab"}),
        ("/v1/messages", CHAT_BODY),
        ("/api/chat", CHAT_BODY),
        ("/api/generate", {"prompt": "ab"}),
        ("/api/generate", {"prompt": "ab", "raw": True}),
        ("/v1/audio/transcriptions", {"file": base64.b64encode(wav(1)).decode()}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_client_of_any_api_can_ask_that_nothing_is_written(path, body, field) -> None:
    worker = FakeWorker(heard)
    worker.info_when_ready = replace(INFO, modalities=("audio",))
    with serving(worker) as client:
        for fields in ({}, {field: False}):
            assert client.post(path, json=body | fields).status_code == 200
    requests = [one for one in worker.requests if not isinstance(one, MediaQuestion)]
    assert [one.is_private for one in requests] == [False, True]


@pytest.mark.parametrize(("free", "mib"), [(2**44, 10240), (2**33, 819)])
def test_the_bound_is_10_gib_or_a_tenth_of_what_is_free(free, mib, home: Path, monkeypatch) -> None:
    monkeypatch.setattr(stored_prompts, "disk_usage", lambda path: Usage(free))
    assert with_prompts(Config()).scheduler.cache_disk == mib


def test_the_bound_stays_while_the_folder_fills(home: Path, monkeypatch) -> None:
    def used(path: Path) -> Usage:
        return Usage((1 << 30) - sum(file.stat().st_size for file in path.glob("*/*")))

    monkeypatch.setattr(stored_prompts, "disk_usage", used)
    bounds = []
    for number in range(3):
        bounds.append(with_prompts(Config()).scheduler.cache_disk)
        file = home / "prompts" / "model" / str(number)
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.truncate(file, 100 << 20)
    assert bounds == [102, 102, 102]


def test_a_named_folder_that_cannot_be_used_is_a_warning(home: Path, caplog) -> None:
    file = home / "prompts"
    file.touch()
    with caplog.at_level("INFO"):
        for path in (None, str(file)):
            with_prompts(replace(Config(), scheduler=SchedulerConfig(cache_disk_path=path)))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_what_was_set_by_hand_stays(home: Path) -> None:
    for set_by_hand in ({"cache_disk": 5}, {"cache_disk": 0}, {"cache_ram": 0}):
        scheduler = SchedulerConfig(**set_by_hand)
        config = replace(Config(), scheduler=scheduler)
        assert with_prompts(config) == config
    assert not list(home.iterdir())


@pytest.mark.parametrize("kind", ["a file", "read-only", "full", "no home"])
def test_where_nothing_can_be_written_a_server_starts_and_says_why(kind, home, monkeypatch, caplog):
    if kind == "a file":
        (home / "prompts").touch()
    elif kind == "full":
        monkeypatch.setattr(stored_prompts, "disk_usage", lambda path: Usage(10**6))
    elif kind == "read-only":  # root may write whatever the mode says
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    else:
        monkeypatch.delenv("HEADSTART_CACHE")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with caplog.at_level("INFO"):
        assert not with_prompts(Config()).scheduler.cache_disk
    assert "prompts are not kept on the disk" in caplog.text


MIB = 2**20


class SlotWorker(FakeWorker):
    """Saves a MiB, and restores what there is."""

    def submit(self, request: Any, deliver: Any) -> None:
        assert isinstance(request, SlotAction)
        path = Path(request.path)
        event: Event | RequestError = ReplyEvent(request.request_id, (1, MIB, 0.0))
        if request.action == "save":
            path.write_bytes(bytes(MIB))
        elif not path.exists():
            event = RequestError(f"{path.name} does not exist")
        deliver(event)


def act(client: httpx2.Client, action: str, name: str, **headers: str) -> httpx2.Response:
    body = {"filename": name}
    return client.post(f"/slots/0?action={action}", json=body, headers=headers)


def config(folder: Path, **settings: Any) -> ServerConfig:
    return ServerConfig(slot_save_path=str(folder), **settings)


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({"api_key": "a,b"}, {"x-api-key": "a"}, {"x-api-key": "b"}),
        (
            {"api_key": "a", "tenant_header": "x-tenant"},
            {"x-api-key": "a", "x-tenant": "1"},
            {"x-api-key": "a", "x-tenant": "2"},
        ),
    ],
)
def test_tenants_do_not_see_each_others_files(tmp_path, settings, first, second):
    with serving(SlotWorker(), config(tmp_path, **settings)) as client:
        assert act(client, "restore", "it", **first).status_code == 400
        assert act(client, "save", "it", **first).status_code == 200
        assert act(client, "restore", "it", **first).status_code == 200
        assert act(client, "restore", "it", **second).status_code == 400
        assert act(client, "save", "it", **second).status_code == 200
    assert len(list(tmp_path.glob("*/it"))) == 2
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(("key", "headers"), [(None, {}), ("a", {"x-api-key": "a"})])
def test_a_single_tenants_files_are_in_the_folder_itself(tmp_path, key, headers):
    with serving(SlotWorker(), config(tmp_path, api_key=key)) as client:
        assert act(client, "save", "it", **headers).status_code == 200
    assert [one.name for one in tmp_path.iterdir()] == ["it"]


def test_the_bytes_of_each_tenant_are_limited_whatever_is_saved_over(tmp_path):
    with serving(SlotWorker(), config(tmp_path, api_key="a,b", tenant_slot_files_mb=2)) as client:
        a, b = {"x-api-key": "a"}, {"x-api-key": "b"}
        assert [act(client, "save", name, **a).status_code for name in "123"] == [200, 200, 429]
        assert "2 MiB" in act(client, "save", "3", **a).json()["error"]["message"]
        assert act(client, "save", "2", **a).status_code == 200
        assert act(client, "save", "3", **b).status_code == 200
    assert len(list(tmp_path.glob("*/*"))) == 3


def test_a_small_file_counts_as_a_mib(tmp_path):
    for name in "12":
        (tmp_path / name).touch()
    with serving(SlotWorker(), config(tmp_path, tenant_slot_files_mb=2)) as client:
        assert act(client, "save", "3").status_code == 429


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


def test_only_what_may_be_recorded_is_on_the_disk_after_a_stop(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    config = Config(
        engine=EngineConfig(context=512, threads=1),
        speculation=SpeculationConfig(spec="off"),
        server=ServerConfig(api_key="open,shut"),
        recording=RecordingConfig(record_texts=str(folder), record_tenants="open"),
    )
    with serving_models(config) as client:

        def post(key: str, route: str, **body: object) -> None:
            headers = {"authorization": f"Bearer {key}"}
            assert client.post(route, json=body, headers=headers).status_code == 200

        post("open", "/v1/chat/completions", **CHAT, seed=1)
        post("open", "/v1/chat/completions", **CHAT, seed=2, store=False)
        post("open", "/v1/responses", input="Hi", max_output_tokens=4, seed=3, store=False)
        post("shut", "/v1/chat/completions", **CHAT, seed=4)
        post("shut", "/v1/responses", input="Hi", max_output_tokens=4, seed=5)  # its default
        post("shut", "/completion", prompt="Hi", n_predict=4, seed=6, store=True)
    # a server's process ends when its texts are written
    until(lambda: len(read_texts(folder, ModelId.of(path(TARGET)).digest)) > 1, "two texts")
    found = read_texts(folder, ModelId.of(path(TARGET)).digest)
    tenants = {namespace_of_key(key.encode()): key for key in ("open", "shut")}
    assert {(tenants[text.tenant], text.sampling.seed) for text in found} == {
        ("open", 1),
        ("shut", 6),
    }
