"""Models from the Hugging Face hub, by llama-server's rules and in the cache it shares.

`user/repo[:quant]` names a file as llama.cpp does (common/download.cpp), so both programs find
each other's downloads. Knows the hub and its cache; does not know what a GGUF holds.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headstart.config import ModelConfig
from headstart.errors import ConfigError, ModelError

DEFAULT_ENDPOINT = "https://huggingface.co"
DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")  # tried in this order when no quant is named
LIST_TIMEOUT_SECONDS = 10
NOT_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")  # companions of a model
# companions that draft for a model, in the order in which llama-server takes them
DRAFTERS = ("mtp-", "dspark-", "dflash-", "eagle3-")

_REFERENCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+))?", re.ASCII)
_QUANT = re.compile(r"[-.]([A-Za-z0-9_]+)$")
_SPLIT = re.compile(r"(?P<prefix>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """The files to load; None for `target` means the embedded model, for `draft` none."""

    target: Path | None
    draft: Path | None


def resolve_model(config: ModelConfig, environment: Mapping[str, str] = os.environ) -> ModelPaths:
    """Find the model files on this disk, downloading what is missing. Shows a progress bar.

    Raises:
        ConfigError: options that exclude each other, or a malformed reference.
        ModelError: there is no such file, repository or quant, or it cannot be had.
    """
    if config.hf_file and not config.hf_repo:
        raise ConfigError(f"--hf-file {config.hf_file} needs --hf-repo")
    hub = Hub.from_config(config, environment)
    return ModelPaths(
        target=_resolve(
            hub, ("--model", config.model), ("--hf-repo", config.hf_repo), config.hf_file
        ),
        draft=_resolve(
            hub,
            ("--draft-model", config.draft_model),
            ("--draft-hf-repo", config.draft_hf_repo),
            None,
        ),
    )


def _resolve(
    hub: Hub, local: tuple[str, str | None], remote: tuple[str, str | None], file: str | None
) -> Path | None:
    (local_flag, path), (remote_flag, reference) = local, remote
    if path and reference:
        raise ConfigError(
            f"{local_flag} {path} and {remote_flag} {reference} name two models; give one"
        )
    if reference:
        is_draft = remote_flag == "--draft-hf-repo"
        return hub.fetch(*parse_reference(reference), file, is_draft=is_draft)
    if path is None:
        return None
    found = Path(path).expanduser()
    if found.is_dir():
        raise ModelError(f"{local_flag} {path} is a folder; name the GGUF file in it")
    if not found.is_file():
        raise ModelError(f"{local_flag} {path}: there is no such file")
    return found


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
    models = [path for path in paths if _is_model(path) and _part_index(path) == 1]
    for wanted in [quant] if quant else DEFAULT_QUANTS:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        for path in models:
            if pattern.search(path):
                return path
    return models[0] if models and not quant else None


def choose_drafter(paths: Sequence[str], quant: str) -> str | None:
    """The file of a repository that drafts for a model, by quant or the first; None without one."""
    ggufs = [path for path in paths if path.endswith(".gguf") and _part_index(path) == 1]
    for kind in DRAFTERS:
        found = [path for path in ggufs if kind in path.rsplit("/", 1)[-1]]
        exact = [path for path in found if quant and f"-{quant}.".lower() in path.lower()]
        if found:
            return (exact or found)[0]
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


def cache_directory(environment: Mapping[str, str]) -> Path:
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
    token: str | None
    offline: bool

    def __repr__(self) -> str:
        return f"Hub({self.endpoint})"  # never the token

    @classmethod
    def from_config(cls, config: ModelConfig, environment: Mapping[str, str]) -> Hub:
        """The hub that flags and environment name."""
        return cls(
            endpoint=(environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"),
            cache=cache_directory(environment),
            token=config.hf_token or environment.get("HF_TOKEN") or None,
            offline=config.offline
            or environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "on", "yes"),
        )

    def fetch(self, repo: str, quant: str, file: str | None, *, is_draft: bool = False) -> Path:
        """Path of a model's (first) file, after downloading every part that is not cached.

        For drafts, files that are made for that come before whole models.

        Raises:
            ModelError: it does not exist or cannot be had.
        """
        if self.offline:
            return self._fetch_cached(repo, quant, file, is_draft=is_draft)
        try:
            with self._explained(repo):
                paths = self._list(repo)
                file = file or (choose_drafter(paths, quant) if is_draft else None)
                parts = [
                    self._download(repo, part) for part in select_files(repo, paths, quant, file)
                ]
                return parts[0]
        except _UnreachableError as error:
            # Whoever has the model wants to use it, network or not.
            try:
                path = self._fetch_cached(repo, quant, file, is_draft=is_draft)
            except ModelError:
                raise error from None
            logger.warning("%s; using the cached %s", error, path)
            return path

    def _fetch_cached(
        self, repo: str, quant: str, file: str | None, *, is_draft: bool = False
    ) -> Path:
        snapshot = self._snapshot(repo)
        files = [path for path in snapshot.rglob("*") if path.is_file()] if snapshot else []
        if snapshot is None or not files:
            raise ModelError(
                f"{repo} is not in the cache {self.cache} and --offline forbids the network; "
                "start once without --offline to download it"
            )
        paths = sorted(path.relative_to(snapshot).as_posix() for path in files)
        file = file or (choose_drafter(paths, quant) if is_draft else None)
        return snapshot / select_files(f"{repo} (cached)", paths, quant, file)[0]

    def cached_models(self) -> dict[str, Path]:
        """user/repo:QUANT -> file of every model in the cache, as llama-server names them."""
        found: dict[str, Path] = {}
        for folder in sorted(self.cache.glob("models--*")):
            repo = folder.name.removeprefix("models--").replace("--", "/", 1)
            snapshot = self._snapshot(repo)
            for file in sorted(snapshot.rglob("*.gguf")) if snapshot else ():
                path = file.relative_to(snapshot or folder).as_posix()
                parts = _SPLIT.fullmatch(path)
                quant = _QUANT.search(parts["prefix"] if parts else path.removesuffix(".gguf"))
                if quant and _is_model(path) and _part_index(path) == 1:
                    found.setdefault(f"{repo}:{quant[1].upper()}", file)
        return found

    def cached_file(self, reference: str, file: str | None = None) -> Path | None:
        """Where a model is in the cache; None if it is not."""
        try:
            return self._fetch_cached(*parse_reference(reference), file)
        except (ConfigError, ModelError):
            return None

    def files(self, repo: str) -> list[str]:
        """What a repository holds.

        Raises:
            ModelError: the hub does not say.
        """
        with self._explained(repo):
            return self._list(repo)

    def sizes(self, repo: str) -> dict[str, int | None]:
        """What a repository holds, and how many bytes each file has, where the hub says so.

        Raises:
            ModelError: the hub says nothing.
        """
        from huggingface_hub import HfApi

        with self._explained(repo):
            info = HfApi(endpoint=self.endpoint, token=self.token).model_info(
                repo, timeout=LIST_TIMEOUT_SECONDS, files_metadata=True
            )
        return {sibling.rfilename: sibling.size for sibling in info.siblings or ()}

    def folder(self, repo: str) -> Path:
        """Where a repository is cached."""
        return self.cache / ("models--" + repo.replace("/", "--"))

    def parts(self, file: Path) -> list[Path]:
        """All cached files of a model, given the first."""
        names = [path.name for path in file.parent.iterdir()]
        return [file.parent / name for name in split_parts(names, file.name)]

    def _snapshot(self, repo: str) -> Path | None:
        """The cached revision that `main` pointed to at the last download."""
        folder = self.folder(repo)
        reference = folder / "refs/main"
        return folder / "snapshots" / reference.read_text().strip() if reference.is_file() else None

    def _list(self, repo: str) -> list[str]:
        from huggingface_hub import HfApi

        # Not list_repo_files, which tries for half a minute when there is no network.
        info = HfApi(endpoint=self.endpoint, token=self.token).model_info(
            repo, timeout=LIST_TIMEOUT_SECONDS
        )
        return [sibling.rfilename for sibling in info.siblings or ()]

    def _download(self, repo: str, path: str) -> Path:
        from huggingface_hub import hf_hub_download

        return Path(
            hf_hub_download(
                repo, path, cache_dir=self.cache, token=self.token, endpoint=self.endpoint
            )
        )

    @contextmanager
    def _explained(self, repo: str) -> Iterator[None]:
        """Turn what huggingface_hub raises into our errors. Its order matters: gated is a kind of
        not found.
        """
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
            hint = (
                "the token may not see it"
                if self.token
                else "if it is private, pass --hf-token or HF_TOKEN"
            )
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


class _UnreachableError(ModelError):
    """The hub cannot be asked now; a cached copy would do."""


def select_files(repo: str, paths: Sequence[str], quant: str, file: str | None) -> list[str]:
    """The files to have, the one to open first.

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
        models = [path for path in paths if _is_model(path) and _part_index(path) == 1]
        raise ModelError(f"{repo} holds {wanted}; its GGUF models: {', '.join(models) or 'none'}")
    return split_parts(paths, chosen)


def _is_model(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return name.endswith(".gguf") and not any(word in name for word in NOT_MODELS)


def _part_index(path: str) -> int:
    match = _SPLIT.fullmatch(path)
    return int(match["index"]) if match else 1
