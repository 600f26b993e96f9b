"""What the hub's cache has of a model, and its projector."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from huggingface_hub.utils._fixes import WeakFileLock
from tests.unit.app.hub.fake_hub import Client, FakeHub

from headstart.app.hub import Hub
from headstart.app.hub_files import choose_drafter
from headstart.config import ImageConfig, ModelConfig
from headstart.types.errors import ConfigError, ModelError

REPO = "someone/Model-4B-GGUF"


@pytest.mark.parametrize(
    ("projectors", "model", "chosen"),
    [
        ((), "m-Q4_K_M.gguf", None),
        (("mmproj.gguf",), "m-Q4_K_M.gguf", "mmproj.gguf"),
        (("m.mmproj.Q8_0.gguf",), "m-Q4_K_M.gguf", "m.mmproj.Q8_0.gguf"),
        (("m-mmproj-f16.gguf", "mmproj.bin"), "m-Q4_K_M.gguf", "m-mmproj-f16.gguf"),
        # about as many bits as the model has, of equals the first
        (("mmproj-F16.gguf", "mmproj-F32.gguf"), "m-Q4_K_M.gguf", "mmproj-F16.gguf"),
        (("mmproj-BF16.gguf", "mmproj-F16.gguf"), "m-Q4_K_M.gguf", "mmproj-BF16.gguf"),
        (("mmproj-F16.gguf", "mmproj-Q8_0.gguf"), "m-Q4_K_M.gguf", "mmproj-Q8_0.gguf"),
        (("mmproj-F16.gguf", "mmproj-Q8_0.gguf"), "m-F16.gguf", "mmproj-F16.gguf"),
        (("mmproj-Q4_0.gguf", "mmproj-Q4_K_M.gguf"), "m-Q4_K_M.gguf", "mmproj-Q4_0.gguf"),
        # in the model's folder or above it, the nearest first
        (("mmproj-F16.gguf", "a/mmproj-F16.gguf"), "a/m-Q4_K_M.gguf", "a/mmproj-F16.gguf"),
        (("mmproj-F16.gguf", "b/mmproj-F16.gguf"), "a/m-Q4_K_M.gguf", "mmproj-F16.gguf"),
        (("b/mmproj-F16.gguf",), "a/m-Q4_K_M.gguf", None),
    ],
)
def test_a_model_gets_the_projector_that_llama_server_would_give_it(
    client: Client, hub: FakeHub, projectors: tuple[str, ...], model: str, chosen: str | None
) -> None:
    hub.add(REPO, model, *projectors)
    quant = model.partition("-")[2].removesuffix(".gguf")
    assert choose_drafter([model, *projectors], ("mmproj",), "", model) == chosen
    for reference in (REPO, f"{REPO}:{quant}"):
        found = client.find(reference, spec_type="suffix")
        wanted = found.target.parents[model.count("/")] / chosen if chosen else None
        assert found.projector == wanted
    assert client.find(REPO, spec_type="suffix", offline=True).projector == wanted


def test_a_projector_is_not_downloaded_where_another_is_named_or_none_is_wanted(
    client: Client, hub: FakeHub, tmp_path: Path
) -> None:
    hub.add(REPO, "m-Q4_K_M.gguf", "mmproj-F16.gguf")
    (tmp_path / "own.gguf").touch()
    named = ImageConfig(mmproj=str(tmp_path / "own.gguf"))
    for images, projector in (
        (named, tmp_path / "own.gguf"),
        (ImageConfig(mmproj_auto=False), None),
    ):
        assert client.find(REPO, spec_type="suffix", images=images).projector == projector
    assert hub.downloads == ["m-Q4_K_M.gguf"]


NAME = "org/model:F16"
PARTS = ("big-Q8_0-00001-of-00002.gguf", "big-Q8_0-00002-of-00002.gguf")


@pytest.fixture
def store(client: Client, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub.add("org/model", "model-F16.gguf", "other-Q4_0.gguf", *PARTS)
    monkeypatch.setenv("PYTHONPATH", "src")
    return Hub(ModelConfig(), {**os.environ, **client.environment})


def download(store: Hub, name: str) -> list[dict[str, object]]:
    command, environment = store.download(name)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == any("error" in line for line in lines[-1:]), done.stderr
    return lines


def test_a_download_tells_how_far_it_is_and_a_removed_model_is_gone(store: Hub, hub: FakeHub):
    store.check(NAME)
    size = len(hub.repos["org/model"]["model-F16.gguf"])
    lines = download(store, NAME)
    assert lines[0] == {"source": "org/model", "done": 0, "total": size}
    assert lines[-1] == {"source": "org/model", "done": size, "total": size}
    download(store, "org/model:Q8_0")
    assert list(store.cached_models()) == ["org/model:Q8_0", NAME]
    folder = store.folder("org/model")
    store.remove(NAME)
    assert list(store.cached_models()) == ["org/model:Q8_0"]
    assert len(list((folder / "blobs").iterdir())) == 2
    store.remove("org/model:Q8_0")  # both parts
    assert not folder.exists()
    with pytest.raises(ModelError, match="is not in the cache"):
        store.remove(NAME)


def test_a_model_with_brackets_in_its_name_can_be_removed(store: Hub, hub: FakeHub) -> None:
    hub.add("org/model", "model[1]-F16.gguf", "model-Q8_0.gguf")
    download(store, NAME)
    download(store, "org/model:Q8_0")
    store.remove(NAME)
    assert list(store.cached_models()) == ["org/model:Q8_0"]
    (link,) = store.folder("org/model").rglob("*.gguf")
    assert link.name == "model-Q8_0.gguf"


def test_a_link_to_a_file_that_is_gone_is_no_model(store: Hub, hub: FakeHub) -> None:
    download(store, NAME)
    store.cached_models()[NAME].resolve().unlink()
    assert not store.cached_models()


def test_a_model_whose_download_was_interrupted_can_be_removed(store: Hub, hub: FakeHub) -> None:
    download(store, "org/model:Q8_0")
    (second,) = store.folder("org/model").rglob(PARTS[1])
    second.resolve().unlink()
    second.unlink()
    assert list(store.cached_models()) == ["org/model:Q8_0"]
    store.remove("org/model:Q8_0")
    assert not store.folder("org/model").exists()


@pytest.mark.parametrize("action", ["download", "remove"])
def test_what_a_killed_download_left_goes_and_what_a_live_one_writes_stays(
    store: Hub, hub: FakeHub, action: str
) -> None:
    download(store, NAME)
    download(store, "org/model:Q8_0")
    folder = store.folder("org/model")
    left, live = (folder / "blobs" / f"{etag}.0123abcd.incomplete" for etag in ("dead", "alive"))
    for file in (left, live):
        file.write_bytes(bytes(100))
    with WeakFileLock(store.cache / ".locks" / folder.name / "alive.lock"):
        if action == "download":
            download(store, NAME)
        else:
            store.remove(NAME)
        assert (left.exists(), live.exists()) == (False, True)


def test_what_drafts_or_sees_for_a_model_comes_and_goes_with_it(store: Hub, hub: FakeHub) -> None:
    found = ["mmproj-F16.gguf", "model-F16.gguf", "mtp-model-F16.gguf"]
    hub.add("org/model", *found, "mmproj-F32.gguf", "eagle3-model-F16.gguf")
    store = Hub(ModelConfig(), store.environment, ["mtp"])
    lines = download(store, NAME)
    assert sorted(hub.downloads) == found
    assert lines[-1]["done"] == sum(len(hub.repos["org/model"][name]) for name in hub.downloads)
    store.remove(NAME)
    assert not store.folder("org/model").exists()


def test_what_cannot_be_downloaded_is_refused_with_a_reason(store: Hub, hub: FakeHub) -> None:
    for name, says in (("org/model:Q2_K", "no model of quant Q2_K"), ("org/none", "no repository")):
        with pytest.raises(ModelError, match=says):
            store.check(name)
    with pytest.raises(ConfigError, match="user/repo"):
        store.check("model")
    with pytest.raises(ModelError, match="cannot be the name of a repository"):
        store.check("../model")
    hub.failing_status = 500
    assert "answered 500" in str(download(store, NAME)[-1]["error"])


def test_offline_only_what_is_in_the_cache_can_be_downloaded(store: Hub, hub: FakeHub) -> None:
    offline = Hub(ModelConfig(offline=True), store.environment)
    with pytest.raises(ModelError, match="--offline forbids"):
        offline.check(NAME)
    download(store, NAME)
    offline.check(NAME)
    assert download(offline, NAME) == []
    assert hub.downloads == ["model-F16.gguf"]
    with pytest.raises(ModelError, match="no model of quant Q2_K"):
        offline.check("org/model:Q2_K")


def test_a_token_is_not_on_the_command_line(store: Hub) -> None:
    secret = Hub(ModelConfig(hf_token="hf_secret"), store.environment)
    command, environment = secret.download(NAME)
    assert "hf_secret" not in " ".join(command)
    assert environment["HF_TOKEN"] == "hf_secret"
