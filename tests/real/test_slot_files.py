"""Slots in files, over HTTP with the embedded models: saved, erased, restored, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.real.support import serving_demo
from tests.server.serving import error_of

from headstart.config import SchedulerConfig, ServerConfig
from headstart.structures import sequence_files

PROMPT = (
    "def add(first, second):\n    return first + second\n\n\ndef multiply(first, second):\n" * 3
)
BODY = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "id_slot": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx2.Client]:
    scheduler = SchedulerConfig(parallel=2, cache_ram=0)
    with serving_demo(scheduler, ServerConfig(slot_save_path=str(folder))) as client:
        yield client


def act(client: httpx2.Client, action: str, slot: int = 0, name: str = "a.bin") -> httpx2.Response:
    return client.post(f"/slots/{slot}?action={action}", json={"filename": name})


def test_a_restored_slot_goes_on_where_it_was_saved(client: httpx2.Client, folder: Path) -> None:
    first = client.post("/completion", json=BODY).json()
    saved = act(client, "save").json()
    assert saved["n_saved"] == first["tokens_evaluated"] + first["tokens_predicted"] - 1
    assert saved["n_written"] == (folder / "a.bin").stat().st_size
    assert act(client, "erase").json() == {"id_slot": 0, "n_erased": saved["n_saved"]}
    assert client.get("/slots").json()[0]["n_tokens_in_cache"] in (0, saved["n_saved"])
    restored = act(client, "restore", slot=1).json()
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    again = client.post("/completion", json=BODY | {"id_slot": 1}).json()
    assert again["content"] == first["content"]
    assert again["timings"]["prompt_n"] == 1


def test_a_file_that_is_none_is_refused_and_the_server_lives(
    client: httpx2.Client, folder: Path
) -> None:
    saved = act(client, "save").json()
    assert saved["n_saved"] >= 0
    client.post("/completion", json=BODY)
    act(client, "save")
    data = (folder / "a.bin").read_bytes()
    damaged = {
        "empty.bin": b"",
        "text.bin": b"no such thing at all",
        "short.bin": data[:100],
        "half.bin": data[: len(data) // 2],
        "ids.bin": data[:12] + b"\xff\xff\xff\x7f" * 3 + data[24:],
    }
    for name, content in damaged.items():
        (folder / name).write_bytes(content)
        answer = act(client, "restore", name=name)
        assert answer.status_code == 400, name
        assert name in answer.json()["error"]["message"]
    assert act(client, "restore", name="absent.bin").status_code == 400
    assert client.post("/completion", json=BODY).status_code == 200


def test_a_file_with_images_is_refused_where_no_request_can_ask_for_them(
    client: httpx2.Client, folder: Path
) -> None:
    client.post("/completion", json=BODY)
    act(client, "save")
    saved = sequence_files.read(folder / "a.bin", 10**6, 10**6)
    tokens = [-5, *saved.tokens[1:]]
    sequence_files.write(folder / "images.bin", tokens, saved.data, saved.num_exact)
    answer = act(client, "restore", name="images.bin")
    assert "restore media tokens without an mmproj" in error_of(answer, 400)


@pytest.mark.parametrize("name", ["../a.bin", "/etc/passwd", "a/b", ".hidden", "", "x" * 300])
def test_a_name_that_leaves_the_folder_is_refused(client: httpx2.Client, name: str) -> None:
    assert act(client, "save", name=name).status_code == 400


def test_wrong_actions_and_slots_are_named(client: httpx2.Client) -> None:
    assert act(client, "drop").status_code == 400
    assert act(client, "erase", slot=9).status_code == 400
