"""Models from the Hugging Face hub, in the cache that llama-server shares.

A router downloads in a separate process, `python -m headstart.app.hub user/repo:quant`, which
writes its progress as lines of JSON and can be killed at any time: complete files are kept for the
next try, unfinished ones deleted then. Drafters in the same repository are downloaded too, and
removed with the last model.
"""

from __future__ import annotations

import fcntl
import glob
import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from headstart.app.hub_files import (
    all_parts,
    choose_drafter,
    is_model,
    parse_reference,
    quant_of_model,
    select_files,
    split_parts,
)
from headstart.config import ModelConfig
from headstart.config.fields import SWITCH_WORDS
from headstart.structures.atomic import home_folder
from headstart.types.errors import ConfigError, ModelError

logger = logging.getLogger(__name__)


def hub_cache(environment: Mapping[str, str]) -> Path:
    """The folder of downloads; the same order of variables as in llama.cpp."""
    for name, below in (
        ("LLAMA_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if value := environment.get(name):
            return Path(value).expanduser() / below
    return home_folder() / ".cache/huggingface/hub"


class Hub:
    """A hub and the cache of what was downloaded from it; a router's `ModelStore`."""

    def __init__(
        self, config: ModelConfig, environment: Mapping[str, str], drafters: Sequence[str] = ()
    ) -> None:
        """`drafters`: the kinds of drafters that are downloaded with a model."""
        self.endpoint = (environment.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        self.cache = hub_cache(environment)
        self.token = config.hf_token or environment.get("HF_TOKEN") or None
        word = environment.get("HF_HUB_OFFLINE", "").lower()
        self.offline = config.offline or SWITCH_WORDS.get(word, False)
        self.environment, self.drafters = environment, drafters

    def open(self, reference: str) -> Repository:
        """The files of user/repo or user/repo:quant: at the hub, or in the cache if the hub cannot
        be asked.

        Raises:
            ConfigError: the reference has another form.
            ModelError: neither knows it.
        """
        if self.offline:
            return self._cached(reference)
        repo, quant = parse_reference(reference)
        try:
            return Repository(self, repo, quant, tuple(self.sizes(repo)))
        except _UnreachableError as error:
            try:
                cached = self._cached(reference)
            except ModelError:
                raise error from None
            logger.warning("%s; using what is cached", error)
            return replace(cached, problem=error)

    def _cached(self, reference: str) -> Repository:
        repo, quant = parse_reference(reference)
        snapshot = self.snapshot(repo)
        files = [path for path in snapshot.rglob("*") if path.is_file()] if snapshot else []
        if snapshot is None or not files:
            raise ModelError(
                f"{repo} is not in the cache {self.cache} and --offline forbids the network; "
                "start once without --offline to download it"
            )
        paths = sorted(path.relative_to(snapshot).as_posix() for path in files)
        return Repository(self, repo, quant, tuple(paths), snapshot)

    def cached_models(self) -> dict[str, Path]:
        """user/repo:QUANT -> file of every model in the cache, as llama-server names them."""
        found: dict[str, Path] = {}
        for folder in sorted(self.cache.glob("models--*")):
            repo = folder.name.removeprefix("models--").replace("--", "/", 1)
            snapshot = self.snapshot(repo)
            for file in sorted(snapshot.rglob("*.gguf")) if snapshot else ():
                quant = quant_of_model(file.relative_to(snapshot or folder).as_posix())
                if quant and file.is_file():
                    found.setdefault(f"{repo}:{quant}", file)
        return found

    def cached_file(self, reference: str, file: str | None = None) -> Path | None:
        """Path of a model in the cache; None if it is not there."""
        try:
            cached = self._cached(reference)
            return cached.fetch(cached.select(file))
        except (ConfigError, ModelError):
            return None

    def sizes(self, repo: str) -> dict[str, int | None]:
        """File -> bytes (None if unknown to the hub), of everything in a repository.

        Raises:
            ModelError: the hub does not answer, or has no such repository.
        """
        from huggingface_hub import HfApi

        # Not list_repo_files, which tries for half a minute when there is no network.
        with self.explained(repo):
            info = HfApi(endpoint=self.endpoint, token=self.token).model_info(
                repo, timeout=10, files_metadata=True
            )
        return {sibling.rfilename: sibling.size for sibling in info.siblings or ()}

    def folder(self, repo: str) -> Path:
        """The folder of a cached repository."""
        return self.cache / ("models--" + repo.replace("/", "--"))

    def snapshot(self, repo: str) -> Path | None:
        """The cached revision that `main` pointed to at the last download."""
        folder = self.folder(repo)
        reference = folder / "refs/main"
        return folder / "snapshots" / reference.read_text().strip() if reference.is_file() else None

    def check(self, name: str) -> None:
        """See whether there is such a model: at the hub, or in the cache if that cannot be asked.

        Raises:
            ConfigError, ModelError: there is none.
        """
        self.open(name).select(None)

    def download(self, name: str) -> tuple[list[str], dict[str, str]]:
        """The command that downloads a model, and its environment; with --offline one that does
        nothing: `check` found the model in the cache.
        """
        if self.offline:
            return [sys.executable, "-c", ""], dict(self.environment)
        token = {"HF_TOKEN": self.token} if self.token else {}
        command = [sys.executable, "-m", "headstart.app.hub", name, *self.drafters]
        return command, {**self.environment, **token}

    def remove(self, name: str) -> None:
        """Delete a model's files, and its repository's folder if no other model is left in it.

        Raises:
            ModelError: it is not there.
        """
        first = self.cached_models().get(name)
        if first is None:
            raise ModelError(f"{name} is not in the cache {self.cache}")
        folder = self.folder(parse_reference(name)[0])
        self.drop_unfinished(name)
        for file in all_parts(first.name):  # some may never have come
            path = first.parent / file
            blob = path.resolve()
            for link in list((folder / "snapshots").rglob(glob.escape(path.name))):
                if link.resolve() == blob:
                    link.unlink()
            if blob.is_relative_to(folder.resolve()):
                blob.unlink(missing_ok=True)
        if not any(is_model(path.name) for path in (folder / "snapshots").rglob("*.gguf")):
            shutil.rmtree(folder, ignore_errors=True)

    def drop_unfinished(self, name: str) -> None:
        """Delete what killed downloads of a repository left, which huggingface_hub never reads; a
        live one holds the lock of its file.
        """
        folder = self.folder(parse_reference(name)[0])
        for part in (folder / "blobs").glob("*.incomplete"):
            lock = self.cache / ".locks" / folder.name / f"{part.name.partition('.')[0]}.lock"
            with suppress(OSError):
                lock.parent.mkdir(parents=True, exist_ok=True)
                with lock.open("ab") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    part.unlink()

    @contextmanager
    def explained(self, repo: str) -> Iterator[None]:
        """Turn what huggingface_hub raises into our errors, "gated" before its base "not found"."""
        import httpx2
        from huggingface_hub import errors

        try:
            yield
        except errors.GatedRepoError:
            raise ModelError(
                f"{repo} is gated: accept its licence at {self.endpoint}/{repo}, "
                "then pass your token with --hf-token or HF_TOKEN"
            ) from None
        except errors.RepositoryNotFoundError:
            private = "if it is private, pass --hf-token or HF_TOKEN"
            hint = "the token may not see it" if self.token else private
            raise ModelError(
                f"there is no repository {repo} at {self.endpoint}; check the spelling ({hint})"
            ) from None
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            raise _UnreachableError(
                f"the hub {self.endpoint} answered {status} for {repo}; try again later"
            ) from None
        except (httpx2.HTTPError, errors.LocalEntryNotFoundError) as error:
            raise _UnreachableError(
                f"cannot reach the hub {self.endpoint} for {repo} ({type(error).__name__}); "
                "check the network or HF_ENDPOINT, or use a file with --model"
            ) from None
        except errors.HFValidationError:
            raise ModelError(f"{repo} cannot be the name of a repository at the hub") from None
        except OSError as error:
            raise ModelError(f"cannot store {repo} in {self.cache}: {error}") from None


class _Log:
    """Redirects a progress bar to the log if standard error is not a terminal."""

    def write(self, text: str) -> None:
        if words := text.replace("\x1b[A", "").strip():  # without its movements
            logger.info("downloading %s", words)

    def flush(self) -> None:
        pass


class _UnreachableError(ModelError):
    """The hub cannot be asked now; a cached copy can be used."""


@dataclass(frozen=True, slots=True)
class Repository:
    """The files of a repository, at the hub or in the cache."""

    hub: Hub
    name: str
    quant: str  # that is wanted; "": any
    paths: tuple[str, ...]
    snapshot: Path | None = None  # its folder in the cache, if the hub is not asked
    problem: ModelError | None = None  # why it could not be asked

    def select(self, file: str | None) -> list[str]:
        """The files of a model, the one to open first.

        Raises:
            ModelError: none fits.
        """
        name = f"{self.name} (cached)" if self.snapshot else self.name
        try:
            return select_files(name, self.paths, self.quant, file)
        except ModelError as error:
            raise self.problem or error from None

    def fetch(self, files: Sequence[str]) -> Path:
        """Path of the first file, after downloading those not cached; huggingface_hub also uses
        the cache if the hub cannot be reached.

        Raises:
            ModelError: they cannot be downloaded.
        """
        if self.snapshot:
            return self.snapshot / files[0]
        from huggingface_hub import hf_hub_download
        from tqdm import tqdm

        hub = self.hub
        hub.drop_unfinished(self.name)
        # a line every ten seconds
        in_log: Any = partial(tqdm, file=_Log(), mininterval=10.0, ascii=True, ncols=80)
        bar = None if sys.stderr.isatty() else in_log
        with hub.explained(self.name):
            found = [
                hf_hub_download(
                    self.name,
                    path,
                    cache_dir=hub.cache,
                    token=hub.token,
                    endpoint=hub.endpoint,
                    tqdm_class=bar,
                )
                for path in files
            ]
        return Path(found[0])


def main(name: str, *drafters: str) -> int:
    """Download a model, its projector and what drafts for it; return the exit code."""
    hub = Hub(ModelConfig(), os.environ)
    repo, quant = parse_reference(name)
    is_over = threading.Event()
    try:
        sizes = hub.sizes(repo)
        repository = Repository(hub, repo, quant, tuple(sizes))
        files = repository.select(None)
        for kinds, wanted in ((drafters, quant), (("mmproj",), "")):
            if beside := choose_drafter(repository.paths, kinds, wanted, files[0]):
                files += split_parts(repository.paths, beside)
        total = sum(sizes[file] or 0 for file in files)
        hub.drop_unfinished(repo)  # it would be counted
        before = _stored(hub.folder(repo))
        _tell(repo, 0, total)

        def watch() -> None:
            while not is_over.wait(0.25):
                _tell(repo, _stored(hub.folder(repo)) - before, total)

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        repository.fetch(files)
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
        with suppress(OSError):  # it was just renamed
            sizes += path.stat().st_size
    return sizes


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
