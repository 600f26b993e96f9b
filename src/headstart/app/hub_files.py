"""Which file of a repository is meant, by llama-server's rules; knows names only.

Source: llama.cpp, common/download.cpp
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from posixpath import basename

from headstart.types.errors import ConfigError, ModelError

# kinds of files that draft for a model, and begin with the kind and a hyphen; in llama-server's
# order of preference
DRAFTERS = ("mtp", "dspark", "dflash", "eagle3")

_SPLIT = re.compile(r"(?P<prefix>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def parse_reference(reference: str) -> tuple[str, str]:
    """`user/repo:quant` -> ("user/repo", "quant"); the quant is "" when absent.

    Raises:
        ConfigError: it has another form.
    """
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?", reference, re.ASCII)
    if match is None:
        raise ConfigError(f"{reference!r} is not of the form user/repo or user/repo:quant")
    return match[1], match[2] or ""


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

    It is in the model's folder or above it. Among several of the first kind found, the nearest is
    chosen, then one of the same quant, then the one closest in bits.

    Args:
        paths: the repository's files.
        kinds: of `DRAFTERS`, in order of preference; or mmproj, for a projector.
        quant: the requested one, if any.
        model: the file to draft for.
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
            and (kind if kind == "mmproj" else f"{kind}-") in basename(path)
            and _part_index(path) == 1
            and (not model or path.split("/")[:-1] == folders[: path.count("/")])
        ]
        if found:
            return max(found, key=rank)
    return None


def all_parts(path: str) -> list[str]:
    """The parts of the split model that `path` belongs to, in order; of another, itself."""
    match = _SPLIT.fullmatch(path)
    if match is None:
        return [path]
    count = int(match["count"])
    return [f"{match['prefix']}-{index:05d}-of-{count:05d}.gguf" for index in range(1, count + 1)]


def split_parts(paths: Sequence[str], path: str) -> list[str]:
    """As `all_parts`.

    Raises:
        ModelError: one is not among `paths`.
    """
    parts = all_parts(path)
    missing = [part for part in parts if part not in paths]
    if missing:
        raise ModelError(f"{path} is one of {len(parts)} parts, but {missing[0]} is missing")
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
    name, companions = basename(path), ("mmproj", "imatrix", *(f"{kind}-" for kind in DRAFTERS))
    is_whole = name.endswith(".gguf") and _part_index(path) == 1
    return is_whole and not any(word in name for word in companions)


def quant_of_model(path: str) -> str | None:
    """The quant of a model, in capitals; None if the file is not a model."""
    quant = _quant_of(path)
    return quant.upper() if quant and is_model(path) else None


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
