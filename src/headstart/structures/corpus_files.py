"""Fill a corpus with the files of a project: an assistant copies from the sources it works in."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.structures.corpus import SuffixCorpus
from headstart.types.errors import ConfigError

MAX_FILE_BYTES = 1 << 20
# and those that begin with a dot
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "target", "venv"})


@dataclass(frozen=True, slots=True)
class AddReport:
    """What happened to the files; `num_tokens` counts those of files that were added."""

    num_added: int = 0
    num_known: int = 0
    num_empty: int = 0
    num_binary: int = 0
    num_huge: int = 0  # more than MAX_FILE_BYTES
    num_unreadable: int = 0
    num_tokens: int = 0
    unread: tuple[Path, ...] = ()  # the huge and the unreadable ones


def add_files(
    corpus: SuffixCorpus, tokenize: Callable[[bytes], Sequence[int]], paths: Iterable[Path]
) -> AddReport:
    """Add text files, and those in folders, to a corpus; binary and huge ones are skipped.

    In folders also hidden ones: all users may be served drafts from these texts, and `.env` is no
    source.

    Raises:
        ConfigError: a path does not exist; nothing was added.
    """
    paths = list(paths)
    for path in paths:
        if not path.is_dir() and not path.is_file():
            raise ConfigError(
                f"{path} is neither a file nor a folder, nothing was added; leave it out or "
                "correct it"
            )
    counts: Counter[str] = Counter()
    unread = []
    for path in _files(paths):
        outcome, tokens = _read(path, tokenize)
        if outcome == "num_added" and not corpus.add_file(tokens):
            outcome = "num_known"
        counts[outcome] += 1
        counts["num_tokens"] += len(tokens) if outcome == "num_added" else 0
        if outcome in ("num_huge", "num_unreadable"):
            unread.append(path)
    return AddReport(**counts, unread=tuple(unread))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """These files and those below, in a stable order, and folders that cannot be read; no hidden
    ones below.

    Symbolic links to folders are not followed.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        closed: list[OSError] = []
        for folder, names, files in os.walk(path, onerror=closed.append):
            names[:] = sorted(
                name for name in names if not name.startswith(".") and name not in _SKIPPED_FOLDERS
            )
            yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))
        yield from (Path(error.filename) for error in closed)


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
    if not data:
        return "num_empty", ()
    return ("num_binary", ()) if b"\0" in data else ("num_added", tokenize(data))
