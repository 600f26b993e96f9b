"""A prebuilt libllama is downloaded, checked and unpacked whole, or nothing changes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope
from tests.rules.source import ROOT
from tests.server.serving import serving_app

from headstart.app import assemble
from headstart.app.cli.backend import NAMES, install
from headstart.app.cli.main import main
from headstart.engine import binding, find_library
from headstart.engine.find_library import this_platform
from headstart.types.errors import ConfigError, ModelError


class Site(StaticFiles):
    """Stands in for a release site: a folder of files; `asked` are the ranges."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True)
        self.folder, self.url, self.asked = folder, "", list[str]()

    async def get_response(self, path: str, scope: Scope) -> Response:
        self.asked.append(Headers(scope=scope).get("range", ""))
        return await super().get_response(path, scope)

    def add(self, name: str, library: Path | bytes) -> dict[str, object]:
        """Put a wheel there; returns its row of the table."""
        file = self.folder / name
        with zipfile.ZipFile(file, "w") as wheel:
            if isinstance(library, bytes):
                wheel.writestr("llama_cpp/lib/libllama.so", library)
            else:
                for one in sorted(library.iterdir()):
                    wheel.write(one, f"llama_cpp/lib/{one.name}")
            wheel.writestr("llama_cpp/llama_cpp.py", "not unpacked")
        data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        where = {"backend": "cpu", "platform": this_platform(), "url": f"{self.url}/{name}"}
        return where | {"size": len(data), "sha256": digest}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site")
    with serving_app(Starlette(routes=[Mount("/", site)])) as site.url:
        yield site


@pytest.fixture
def pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the table that is shipped by these rows."""

    def write(*rows: dict[str, object]) -> None:
        (tmp_path / "table.json").write_text(json.dumps(rows))
        monkeypatch.setattr(find_library, "TABLE", tmp_path / "table.json")

    return write


def test_the_libraries_of_an_archive_are_installed_and_nothing_else_is_left(site, pin, tmp_path):
    folder = tmp_path / "cache/libllama"
    folder.mkdir(parents=True)
    (folder / "old.so").touch()
    pin(site.add("a.whl", b"new"))
    install("cpu", folder)
    assert [path.name for path in folder.iterdir()] == ["libllama.so"]
    assert [path.name for path in folder.parent.iterdir()] == ["libllama"]


def test_a_download_that_was_cut_off_goes_on(site: Site, pin: Callable[..., None], tmp_path):
    row = site.add("a.whl", os.urandom(100_000))
    pin(row)
    folder = tmp_path / "cache/libllama"
    folder.parent.mkdir()
    whole = (site.folder / "a.whl").read_bytes()
    (folder.parent / f"{row['sha256']}.part").write_bytes(whole[:60_000])
    install("cpu", folder)
    assert site.asked == ["bytes=60000-"]
    assert (folder / "libllama.so").stat().st_size == 100_000


def test_a_wrong_archive_changes_nothing(site: Site, pin: Callable[..., None], tmp_path) -> None:
    pin(site.add("a.whl", b"new") | {"sha256": "0" * 64})
    folder = tmp_path / "cache/libllama"
    folder.mkdir(parents=True)
    (folder / "libllama.so").write_text("old")
    with pytest.raises(ModelError, match="but must have 0000"):
        install("cpu", folder)
    assert (folder / "libllama.so").read_text() == "old"
    assert [path.name for path in folder.parent.iterdir()] == ["libllama"]


def test_a_site_that_does_not_answer_is_named(site, pin, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the tries of the hub's client
    pin(site.add("a.whl", b"new") | {"url": "http://127.0.0.1:1/a.whl"})
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:1/a\.whl cannot be downloaded"):
        install("cpu", tmp_path / "cache/libllama")


def test_a_backend_without_an_archive_says_what_there_is_and_how_to_compile_it(site, pin, tmp_path):
    pin(site.add("a.whl", b"new"))
    with pytest.raises(ConfigError, match=r"no prebuilt rocm .*\(there are: cpu\)") as caught:
        install("rocm", tmp_path / "x")
    assert f"CMAKE_ARGS=-DGGML_HIP=on {sys.executable} -m pip install --f" in str(caught.value)


def test_without_libllama_the_remedy_is_a_download_only_where_there_is_one(
    site: Site, pin: Callable[..., None], monkeypatch, capsys
) -> None:
    monkeypatch.setattr(find_library, "_library_in", lambda *_: None)
    monkeypatch.delenv("HEADSTART_LIBLLAMA", raising=False)
    compiling = f"{sys.executable} -m pip install llama-cpp-python=={binding.RELEASE}"
    for rows, told in (
        ((), compiling),
        ((site.add("a.whl", b"x"),), "run: headstart backend install cpu"),
    ):
        pin(*rows)
        assert main(["backend"]) == 0
        assert told in capsys.readouterr().out
        with pytest.raises(ConfigError, match=re.escape(told)):
            find_library.load()


def test_a_release_is_pinned_and_its_library_generates(site, pin, tmp_path) -> None:
    """As at a release: an index of wheels, the table made from it, `headstart generate`."""
    tag = this_platform().replace("-", "_")
    name = f"llama_cpp_python-{binding.RELEASE}-py3-none-{tag}.whl"
    site.add(name, binding.folder)
    for backend in ("cpu", "cu125", "vulkan", "metal", "rocm72"):
        page = site.folder / "whl" / backend / "llama-cpp-python"
        page.mkdir(parents=True)
        links = f'<a href="/{name}#x=1">new</a><a href="/{name}.old">o</a>' * (backend == "cpu")
        (page / "index.html").write_text(links)
    for package in ("nvidia-cuda-runtime-cu12", "nvidia-cublas-cu12"):
        (site.folder / "simple" / package).mkdir(parents=True)
        file = f"{package}-12.8-py3-none-many{tag}.whl"
        (site.folder / file).touch()
        (site.folder / "simple" / package / "index.html").write_text(f'<a href="/{file}">it</a>')
    script = runpy.run_path(str(ROOT / "scripts/pin_backends.py"))
    places, none = (f"{site.url}/whl", f"{site.url}/simple"), tmp_path / "none"
    rows = script["table"](*places, binding.RELEASE, none, "")
    assert [(row["backend"], row["platform"]) for row in rows] == [("cpu", this_platform())]
    with pytest.raises(SystemExit, match=r"has no llama-cpp-python 9\.9"):
        script["table"](*places, "9.9", none, "")
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / name).write_bytes(b"cuda")  # of the release itself
    pinned = script["table"](*places, binding.RELEASE, tmp_path / "built", "https://r.invalid/v1")
    assert [row["backend"] for row in pinned] == ["cpu", "cuda", "cuda", "cuda"]
    assert pinned[0] == rows[0]  # whose file has the same name
    assert (pinned[1]["url"], pinned[1]["size"]) == (f"https://r.invalid/v1/{name}", 4)

    (tmp_path / "empty").mkdir()  # hides the package llama-cpp-python
    (tmp_path / "empty/llama_cpp.py").touch()
    environment = os.environ | {
        "PYTHONPATH": f"{tmp_path / 'empty'}:{ROOT / 'src'}",
        "HEADSTART_CACHE": str(tmp_path / "cache"),
    }
    pin(*rows)
    install("cpu", tmp_path / "cache/libllama")
    done = subprocess.run(
        [sys.executable, "-m", "headstart", "generate"],
        env=environment, input="", capture_output=True, text=True,
    )  # fmt: skip
    assert "def write(self, buffer):" in done.stdout, done.stderr


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def plant(folder: Path, name: str, words: str, code: int = 0) -> None:
    (folder / name).write_text(f"#!/bin/sh\necho '{words}'\nexit {code}\n")
    (folder / name).chmod(0o755)


def test_a_card_that_this_build_cannot_use_is_named_with_the_remedy(site, pin, bin_folder) -> None:
    plant(bin_folder, "nvidia-smi", "NVIDIA RTX 4090")
    pin()
    (told,) = assemble.remarks_on_cards(["CPU"], -1)
    assert told.startswith("NVIDIA RTX 4090 is not used")
    assert f"CMAKE_ARGS=-DGGML_CUDA=on {sys.executable} -m pip install --force" in told
    assert "the CUDA toolkit (there is no nvcc in PATH)" in told
    plant(bin_folder, "nvcc", "release 12.8")
    assert "toolkit" not in assemble.remarks_on_cards(["CPU"], -1)[0]
    pin(site.add("a.whl", b"new") | {"backend": "cuda"})
    assert assemble.remarks_on_cards(["CPU"], -1)[0].endswith("run: headstart backend install cuda")
    assert assemble.remarks_on_cards(["CPU", "GPU"], 99) == []


def test_without_libllama_the_one_for_the_card_is_offered(site, pin, bin_folder, monkeypatch):
    monkeypatch.setattr(find_library, "find", lambda: None)
    plant(bin_folder, "nvidia-smi", "NVIDIA RTX 4090")
    cpu = site.add("a.whl", b"new")
    for rows, told in (
        ((), "for NVIDIA RTX 4090 compile it.*CMAKE_ARGS=-DGGML_CUDA=on .* install llama-cpp"),
        ((cpu,), "computes; run: headstart backend install cpu"),
        ((cpu, cpu | {"backend": "cuda"}), "for NVIDIA RTX 4090 run: .* backend install cuda"),
    ):
        pin(*rows)
        with pytest.raises(ConfigError, match=told):
            find_library.load()


def test_layers_for_a_card_that_is_not_there_warn(bin_folder: Path, monkeypatch) -> None:
    plant(bin_folder, "nvidia-smi", "NVIDIA-SMI has failed", code=9)
    monkeypatch.setattr(assemble, "find_card", lambda: None)
    assert assemble.remarks_on_cards(["CPU"], 99) == [
        "--gpu-layers 99 has no effect: this libllama computes on the processor only"
    ]
    assert assemble.remarks_on_cards(["CPU"], -1) == []


def test_other_cards_are_found_by_their_devices(bin_folder: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("ctypes.util.find_library", lambda name: f"lib{name}.so.1")
    assert find_library.find_card(tmp_path) is None
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    assert find_library.find_card(tmp_path) == ("a card with Vulkan", "vulkan")
    (tmp_path / "dev/kfd").touch()
    assert find_library.find_card(tmp_path) == ("an AMD card", "rocm")


def test_every_backend_has_a_name_in_the_table_that_is_shipped() -> None:
    rows = json.loads(find_library.TABLE.read_text("utf-8"))
    assert {row["backend"] for row in rows} <= set(NAMES)
