"""Models from the Hugging Face hub, by llama-server's rules and in the cache it shares.

`user/repo[:quant]` names a file as llama.cpp does (common/download.cpp), so both programs find
each other's downloads. Knows the hub and its cache; does not know what a GGUF holds.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headstart.config import ModelConfig
from headstart.types.errors import ConfigError, ModelError

# kinds of files that draft for a model beside them, whose names begin with the kind and a hyphen;
# in llama-server's order of preference
DRAFTERS = ("mtp", "dspark", "dflash", "eagle3")

SECONDS_IN_LOG = 10.0  # between two lines on a download
_REFERENCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+))?", re.ASCII)
_SPLIT = re.compile(r"(?P<prefix>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def parse_reference(reference: str) -> tuple[str, str]:
    """`user/repo:quant` -> ("user/repo", "quant"); the quant is "" when absent.

    Raises:
        ConfigError: it has another form.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ConfigError(f"{reference!r} is not of the form user/repo or user/repo:quant")
    return match["repo"], match["quant"] or ""


def choose_file(paths: Sequence[str], quant: str) -> str | None:
    """The model file of a repository: by quant, else the usual quants, else the first model.

    A quant matches, in any case, wherever `quant-` or `quant.` occurs in the path. Of a split
    model the first part is chosen.
    """
    models = [path for path in paths if is_model(path)]
    for wanted in [quant] if quant else ["Q4_K_M", "Q8_0"]:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        for path in models:
            if pattern.search(path):
                return path
    return models[0] if models and not quant else None


def choose_drafter(
    paths: Sequence[str], kinds: Sequence[str], quant: str, model: str = ""
) -> str | None:
    """The file of a repository that drafts for `model`, or for any; None without one.

    It is in the folder of the model or above it. Of several of the first kind that there is, the
    nearest is taken, then one of that very quant, then one of about as many bits.

    Args:
        paths: what the repository holds.
        kinds: of `DRAFTERS`, in order of preference; or mmproj, for a projector.
        quant: that was asked for, if one was.
        model: the file for which it drafts.
    """
    folders = model.split("/")[:-1]
    wanted = _bits(quant or _quant_of(model))

    def rank(path: str) -> tuple[int, bool, int]:
        is_exact = bool(quant) and f"-{quant}.".lower() in path.lower()
        return path.count("/"), is_exact, -abs(_bits(_quant_of(path)) - wanted)

    for kind in kinds:
        found = [
            path
            for path in paths
            if path.endswith(".gguf")
            and (kind if kind == "mmproj" else f"{kind}-") in _name(path)
            and _part_index(path) == 1
            and (not model or path.split("/")[:-1] == folders[: path.count("/")])
        ]
        if found:
            return max(found, key=rank)
    return None


def split_parts(paths: Sequence[str], path: str) -> list[str]:
    """All parts of the split model that `path` belongs to, in order; of another, itself."""
    match = _SPLIT.fullmatch(path)
    if match is None:
        return [path]
    count = int(match["count"])
    parts = [f"{match['prefix']}-{index:05d}-of-{count:05d}.gguf" for index in range(1, count + 1)]
    missing = [part for part in parts if part not in paths]
    if missing:
        raise ModelError(f"{path} is one of {count} parts, but {missing[0]} is missing")
    return parts


def select_files(repo: str, paths: Sequence[str], quant: str, file: str | None) -> list[str]:
    """The files to download, the one to open first.

    Raises:
        ModelError: none fits; names those that exist.
    """
    if file is None and "preset.ini" in paths:
        raise ModelError(
            f"{repo} is a preset (preset.ini), which Headstart does not read; name a file with "
            "--hf-file"
        )
    chosen = choose_file(paths, quant) if file is None else file if file in paths else None
    if chosen is None:
        wanted = (
            f"no file {file}" if file else f"no model of quant {quant}" if quant else "no model"
        )
        models = [path for path in paths if is_model(path)]
        raise ModelError(f"{repo} holds {wanted}; its GGUF models: {', '.join(models) or 'none'}")
    return split_parts(paths, chosen)


def is_model(path: str) -> bool:
    """Whether this is a GGUF that is neither a companion of another nor a later part of one."""
    name, companions = _name(path), ("mmproj", "imatrix", *(f"{kind}-" for kind in DRAFTERS))
    is_whole = name.endswith(".gguf") and _part_index(path) == 1
    return is_whole and not any(word in name for word in companions)


def quant_of_model(path: str) -> str | None:
    """The quant of a model, in capitals; None of what is no model."""
    quant = _quant_of(path)
    return quant.upper() if quant and is_model(path) else None


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _quant_of(path: str) -> str:
    """The quantization at the end of a file's name; "" without one."""
    parts = _SPLIT.fullmatch(path)
    name = parts["prefix"] if parts else path.removesuffix(".gguf")
    found = re.search(r"[-.]([A-Za-z0-9_]+)$", name)
    return found[1] if found else ""


def _bits(quant: str) -> int:
    """Q4_K_M -> 4; 0 if no number is named."""
    found = re.search(r"\d+", quant)
    return int(found[0]) if found else 0


def _part_index(path: str) -> int:
    match = _SPLIT.fullmatch(path)
    return int(match["index"]) if match else 1


logger = logging.getLogger(__name__)


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Where downloads live; the same order of variables as llama.cpp."""
    for name, below in (
        ("LLAMA_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if value := environment.get(name):
            return Path(value).expanduser() / below
    return Path.home() / ".cache/huggingface/hub"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """A hub and the cache of what was downloaded from it."""

    endpoint: str
    cache: Path
    token: str | None = field(repr=False)
    offline: bool

    @classmethod
    def from_config(cls, config: ModelConfig, environment: Mapping[str, str]) -> Hub:
        """The hub named by flags and environment."""
        return cls(
            endpoint=(environment.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/"),
            cache=hub_cache(environment),
            token=config.hf_token or environment.get("HF_TOKEN") or None,
            offline=config.offline
            or environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "on", "yes"),
        )

    def open(self, repo: str) -> Repository:
        """The files of a repository: at the hub, or in the cache if the hub cannot be asked.

        Raises:
            ModelError: neither knows it.
        """
        if self.offline:
            return self._cached(repo)
        try:
            return Repository(self, repo, tuple(self.sizes(repo)))
        except _UnreachableError as error:
            try:
                cached = self._cached(repo)
            except ModelError:
                raise error from None
            logger.warning("%s; using what is cached", error)
            return cached

    def _cached(self, repo: str) -> Repository:
        snapshot = self.snapshot(repo)
        files = [path for path in snapshot.rglob("*") if path.is_file()] if snapshot else []
        if snapshot is None or not files:
            raise ModelError(
                f"{repo} is not in the cache {self.cache} and --offline forbids the network; "
                "start once without --offline to download it"
            )
        paths = sorted(path.relative_to(snapshot).as_posix() for path in files)
        return Repository(self, repo, tuple(paths), snapshot)

    def cached_models(self) -> dict[str, Path]:
        """user/repo:QUANT -> file of every model in the cache, as llama-server names them."""
        found: dict[str, Path] = {}
        for folder in sorted(self.cache.glob("models--*")):
            repo = folder.name.removeprefix("models--").replace("--", "/", 1)
            snapshot = self.snapshot(repo)
            for file in sorted(snapshot.rglob("*.gguf")) if snapshot else ():
                if quant := quant_of_model(file.relative_to(snapshot or folder).as_posix()):
                    found.setdefault(f"{repo}:{quant}", file)
        return found

    def cached_file(self, reference: str, file: str | None = None) -> Path | None:
        """Where a model is in the cache; None if it is not."""
        try:
            repo, quant = parse_reference(reference)
            cached = self._cached(repo)
            return cached.fetch(cached.select(quant, file))
        except (ConfigError, ModelError):
            return None

    def sizes(self, repo: str) -> dict[str, int | None]:
        """File -> bytes, where the hub knows them, of everything in a repository.

        Raises:
            ModelError: the hub does not answer, or has no such repository.
        """
        from huggingface_hub import HfApi

        # Not list_repo_files, which tries for half a minute when there is no network.
        with self._explained(repo):
            info = HfApi(endpoint=self.endpoint, token=self.token).model_info(
                repo, timeout=10, files_metadata=True
            )
        return {sibling.rfilename: sibling.size for sibling in info.siblings or ()}

    def folder(self, repo: str) -> Path:
        """Where a repository is cached."""
        return self.cache / ("models--" + repo.replace("/", "--"))

    def parts(self, file: Path) -> list[Path]:
        """All cached files of a model, given the first."""
        names = [path.name for path in file.parent.iterdir()]
        return [file.parent / name for name in split_parts(names, file.name)]

    def snapshot(self, repo: str) -> Path | None:
        """The cached revision that `main` pointed to at the last download."""
        folder = self.folder(repo)
        reference = folder / "refs/main"
        return folder / "snapshots" / reference.read_text().strip() if reference.is_file() else None

    def download(self, repo: str, path: str) -> Path:
        """Where a file is, after a download unless it is cached, which huggingface_hub also takes
        where the hub cannot be reached.

        Raises:
            ModelError: it cannot be downloaded.
        """
        from huggingface_hub import hf_hub_download
        from tqdm import tqdm

        in_log: Any = partial(tqdm, file=_Log(), mininterval=SECONDS_IN_LOG, ascii=True, ncols=80)
        with self._explained(repo):
            return Path(
                hf_hub_download(
                    repo,
                    path,
                    cache_dir=self.cache,
                    token=self.token,
                    endpoint=self.endpoint,
                    tqdm_class=None if sys.stderr.isatty() else in_log,
                )
            )

    @contextmanager
    def _explained(self, repo: str) -> Iterator[None]:
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
    """What a progress bar writes goes into the log, where standard error is no terminal."""

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
    paths: tuple[str, ...]
    snapshot: Path | None = None  # its folder in the cache, if the hub is not asked

    def select(self, quant: str, file: str | None) -> list[str]:
        """The files of a model, the one to open first.

        Raises:
            ModelError: none fits.
        """
        name = f"{self.name} (cached)" if self.snapshot else self.name
        return select_files(name, self.paths, quant, file)

    def fetch(self, files: Sequence[str]) -> Path:
        """Where the first of them is, after downloading those that are not cached.

        Raises:
            ModelError: they cannot be downloaded.
        """
        if self.snapshot:
            return self.snapshot / files[0]
        found = [self.hub.download(self.name, path) for path in files]
        return found[0]
