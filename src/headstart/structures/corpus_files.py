"""Fill a corpus with the files of a project: an assistant copies from the sources it works in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.errors import ConfigError
from headstart.structures.corpus import SuffixCorpus

MAX_FILE_BYTES = 1 << 20
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "target", "venv"})  # and those that begin with a dot


@dataclass(frozen=True, slots=True)
class AddReport:
    """What happened to the files; `num_tokens` counts those of files that were added."""

    num_added: int = 0
    num_known: int = 0
    num_binary: int = 0
    num_huge: int = 0
    num_unreadable: int = 0
    num_tokens: int = 0


def add_files(
    corpus: SuffixCorpus, tokenize: Callable[[bytes], Sequence[int]], paths: Iterable[Path], namespace: str = ""
) -> AddReport:
    """Add text files, and those in folders, to a corpus; binary and huge ones are skipped.

    Raises:
        ConfigError: a path does not exist.
    """
    counts = dict.fromkeys(AddReport.__dataclass_fields__, 0)
    for path in _files(paths):
        outcome, tokens = _read(path, tokenize)
        if outcome == "num_added" and not corpus.add(tokens, namespace):
            outcome = "num_known"
        counts[outcome] += 1
        counts["num_tokens"] += len(tokens) if outcome == "num_added" else 0
    return AddReport(**counts)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """All files below, in a stable order; symbolic links to folders are not followed."""
    for path in paths:
        if path.is_dir():
            for folder, names, files in os.walk(path):
                names[:] = sorted(name for name in names if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
                yield from (Path(folder, name) for name in sorted(files))
        elif path.is_file():
            yield path
        else:
            raise ConfigError(f"{path} is neither a file nor a folder")


def _read(path: Path, tokenize: Callable[[bytes], Sequence[int]]) -> tuple[str, Sequence[int]]:
    try:
        if not path.is_file():  # a pipe or a device would block
            return "num_unreadable", ()
        if path.stat().st_size > MAX_FILE_BYTES:
            return "num_huge", ()
        data = path.read_bytes()
        data.decode()
    except UnicodeDecodeError:
        return "num_binary", ()
    except OSError:
        return "num_unreadable", ()
    return ("num_binary", ()) if b"\0" in data else ("num_added", tokenize(data))
