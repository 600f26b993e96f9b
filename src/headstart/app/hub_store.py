"""Models in the hub's cache for a router: checks, downloads and removes them.

A download is a process of its own, `python -m headstart.app.hub_store user/repo:quant`. It
writes its progress as lines of JSON and can be killed at any time: complete files are kept for the
next try. Files beside it that draft for the model are downloaded too, and removed with the last
model.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from headstart.app.hub import (
    Hub,
    Repository,
    choose_drafter,
    is_model,
    parse_reference,
    select_files,
    split_parts,
)
from headstart.config import ModelConfig
from headstart.types.errors import ConfigError, ModelError


class HubStore:
    """The cache of one hub, as `headstart.gateway.router.downloads.ModelStore` wants it."""

    def __init__(
        self,
        config: ModelConfig,
        environment: Mapping[str, str] = os.environ,
        drafters: Sequence[str] = (),
    ) -> None:
        """`drafters` are the kinds of drafters to download with a model."""
        self._hub = Hub.from_config(config, environment)
        self._environment, self._drafters = environment, drafters

    def check(self, name: str) -> None:
        """Ask the hub whether there is such a model.

        Raises:
            ConfigError, ModelError: there is none, or the hub must not or cannot be asked.
        """
        repo, quant = parse_reference(name)
        if self._hub.offline:
            raise ConfigError(f"{name} cannot be downloaded: --offline forbids the network")
        select_files(repo, list(self._hub.sizes(repo)), quant, None)

    def download(self, name: str) -> tuple[list[str], dict[str, str]]:
        """The program that downloads a model, and its environment."""
        token = {"HF_TOKEN": self._hub.token} if self._hub.token else {}
        command = [sys.executable, "-m", "headstart.app.hub_store", name, *self._drafters]
        return command, {**self._environment, **token}

    def remove(self, name: str) -> None:
        """Delete a model's files, and its repository's folder if no other model is left in it.

        Raises:
            ModelError: it is not there.
        """
        first = self._hub.cached_models().get(name)
        if first is None:
            raise ModelError(f"{name} is not in the cache {self._hub.cache}")
        folder = self._hub.folder(parse_reference(name)[0])
        for path in self._hub.parts(first):
            blob = path.resolve()
            for link in list((folder / "snapshots").rglob(path.name)):
                if link.resolve() == blob:
                    link.unlink()
            if blob.is_relative_to(folder.resolve()):
                blob.unlink(missing_ok=True)
        if not any(is_model(path.name) for path in (folder / "snapshots").rglob("*.gguf")):
            shutil.rmtree(folder, ignore_errors=True)


def main(name: str, *drafters: str) -> int:
    """Download a model, its projector and what drafts for it; return the exit code."""
    hub = Hub.from_config(ModelConfig(), os.environ)
    repo, quant = parse_reference(name)
    is_over = threading.Event()
    try:
        sizes = hub.sizes(repo)
        files = select_files(repo, list(sizes), quant, None)
        for kinds, wanted in ((drafters, quant), (("mmproj",), "")):
            if beside := choose_drafter(list(sizes), kinds, wanted, files[0]):
                files += split_parts(list(sizes), beside)
        total = sum(sizes[file] or 0 for file in files)
        before = _stored(hub.folder(repo))
        _tell(repo, 0, total)

        def watch() -> None:
            while not is_over.wait(0.25):
                _tell(repo, _stored(hub.folder(repo)) - before, total)

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        Repository(hub, repo, tuple(sizes)).fetch(files)
        is_over.set()
        watching.join()
        _tell(repo, total, total)
    except (ConfigError, ModelError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    finally:
        is_over.set()
    return 0


def _tell(repo: str, done: int, total: int) -> None:
    print(json.dumps({"source": repo, "done": max(0, done), "total": total}), flush=True)


def _stored(folder: Path) -> int:
    """Bytes of a repository on this disk, unfinished files included."""
    sizes = 0
    for path in (folder / "blobs").glob("*"):
        try:
            sizes += path.stat().st_size
        except OSError:  # it was just renamed
            continue
    return sizes


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
