"""The comparison of a vocabulary pair and the order of its trie, kept on disk.

A file names the vocabularies it was made for by their hashes and carries a checksum over all it
holds. One that is stale, damaged or of another version is built again, never trusted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.vocabulary.comparison import Comparison, TranslationMode, compare_tables
from headstart.vocabulary.table import VocabTable
from headstart.vocabulary.trie import sort_pieces

log = logging.getLogger(__name__)

_VERSION = 1
_ARRAYS = ("to_draft", "to_target", "order")
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True, eq=False)
class PairData:
    """What is computed once for a pair of vocabularies."""

    comparison: Comparison
    # draft tokens sorted by their bytes; empty if the vocabularies are identical
    order: NDArray[np.int32]


def load_or_build(folder: Path | None, target: VocabTable, draft: VocabTable) -> PairData:
    """The pair's data from `folder`, or computed and stored there; None keeps nothing."""
    if folder is None:
        return _build(target, draft)
    path = cache_path(folder, target, draft)
    data = _load(path, target, draft)
    if data is None:
        data = _build(target, draft)
        try:
            _store(path, data, target, draft)
        except OSError as error:
            log.warning("cannot keep the vocabulary pair in %s: %s", path, error)
    return data


def cache_path(folder: Path, target: VocabTable, draft: VocabTable) -> Path:
    """Where the data of a pair is kept."""
    return folder / f"vocabularies-{target.digest[:16]}-{draft.digest[:16]}.npz"


def _build(target: VocabTable, draft: VocabTable) -> PairData:
    comparison = compare_tables(target, draft)
    is_identical = comparison.mode is TranslationMode.IDENTICAL
    return PairData(
        comparison, np.zeros(0, np.int32) if is_identical else sort_pieces(draft.pieces)
    )


def _load(path: Path, target: VocabTable, draft: VocabTable) -> PairData | None:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in _ARRAYS}
            header, checksum = bytes(file["header"]), bytes(file["checksum"])
        if checksum != _checksum(header, arrays):
            raise ValueError("the checksum does not match")
        fields = json.loads(header)
        if fields["pair"] != _identity(target, draft):
            raise ValueError("made for other vocabularies or by another version")
        comparison = Comparison(
            TranslationMode(fields["way"]),
            arrays["to_draft"],
            arrays["to_target"],
            tuple(fields["differences"]),
        )
        return PairData(comparison, arrays["order"])
    except FileNotFoundError:
        return None
    except _DAMAGE as error:
        log.info("building %s again: %s", path, error)
        return None


def _store(path: Path, data: PairData, target: VocabTable, draft: VocabTable) -> None:
    comparison = data.comparison
    fields = {
        "pair": _identity(target, draft),
        "way": comparison.mode.value,
        "differences": comparison.special_differences,
    }
    header = json.dumps(fields).encode()
    arrays = {
        "to_draft": comparison.to_draft,
        "to_target": comparison.to_target,
        "order": data.order,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(
                file,
                to_draft=arrays["to_draft"],
                to_target=arrays["to_target"],
                order=arrays["order"],
                header=np.frombuffer(header, np.uint8),
                checksum=np.frombuffer(_checksum(header, arrays), np.uint8),
            )
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _identity(target: VocabTable, draft: VocabTable) -> list[str]:
    return [str(_VERSION), target.digest, draft.digest]


def _checksum(header: bytes, arrays: dict[str, NDArray[np.int32]]) -> bytes:
    digest = hashlib.sha256(header)
    for name in _ARRAYS:
        digest.update(f"{name}{arrays[name].dtype.str}{arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.digest()
